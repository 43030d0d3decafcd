package allocate

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// The kubelet speaks gRPC: one HTTP/2 request a call, with a length before the
// message and the outcome in a trailer. That much is said here by net/http:
// google.golang.org/grpc would make cdi-gen, which is copied into pods, twice as
// large. The messages are those of k8s.io/kubelet/pkg/apis/podresources/v1.

// maxReply bounds a reply: List has all of a node's pods.
const maxReply = 16 << 20

// statusError is a gRPC status other than OK.
type statusError struct{ code, text string }

func (e *statusError) Error() string { return "gRPC status " + e.code + ": " + e.text }

// askKubelet asks for one pod, by Get if this kubelet has it (1.34 by default),
// else by List.
func askKubelet(socket, name, namespace string, timeout time.Duration) (podResources, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	var request []byte
	request = appendString(request, 1, name)
	request = appendString(request, 2, namespace)
	reply, err := call(ctx, socket, "Get", request)
	status := (*statusError)(nil)
	if errors.As(err, &status) {
		reply, err = call(ctx, socket, "List", nil)
	}
	if err != nil {
		return podResources{}, err
	}
	// Both replies have pods in field 1.
	var found []podResources
	err = fields(reply, func(number protowire.Number, value []byte) error {
		if number != 1 {
			return nil
		}
		pod, err := parsePod(value)
		if err == nil && pod.name == name && pod.namespace == namespace {
			found = append(found, pod)
		}
		return err
	})
	switch {
	case err != nil:
		return podResources{}, err
	case len(found) != 1:
		return podResources{}, fmt.Errorf("lists %d pods %s/%s (POD_NAMESPACE/POD_NAME), expected one", len(found), namespace, name)
	}
	return found[0], nil
}

// call makes a unary call and returns the reply's message.
func call(ctx context.Context, socket, method string, message []byte) ([]byte, error) {
	transport := &http.Transport{
		Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	transport.Protocols.SetUnencryptedHTTP2(true)
	defer transport.CloseIdleConnections()

	body := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://localhost/v1.PodResourcesLister/"+method,
		bytes.NewReader(append(body, message...)))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("HTTP status %s, expected gRPC", response.Status)
	}
	reply, err := io.ReadAll(io.LimitReader(response.Body, maxReply+1))
	if err != nil {
		return nil, err
	}
	if len(reply) > maxReply {
		return nil, fmt.Errorf("reply is larger than %d MiB", maxReply>>20)
	}
	if err := grpcStatus(response); err != nil {
		return nil, err
	}
	const header = 5
	if len(reply) < header || reply[0] != 0 || int(binary.BigEndian.Uint32(reply[1:])) != len(reply)-header {
		return nil, errors.New("reply is not one gRPC message")
	}
	return reply[header:], nil
}

// grpcStatus is in the trailer, or, of a reply without a message, in the header.
func grpcStatus(response *http.Response) error {
	from := response.Trailer
	if from.Get("Grpc-Status") == "" {
		from = response.Header
	}
	switch code := from.Get("Grpc-Status"); code {
	case "0":
		return nil
	case "":
		return errors.New("reply has no gRPC status")
	default:
		text, err := url.PathUnescape(from.Get("Grpc-Message"))
		if err != nil {
			text = from.Get("Grpc-Message")
		}
		return &statusError{code, text}
	}
}

func appendString(b []byte, number protowire.Number, value string) []byte {
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// fields calls f for each field of a message that is a string or a message.
func fields(message []byte, f func(protowire.Number, []byte) error) error {
	for len(message) > 0 {
		number, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, message); n < 0 {
				return protowire.ParseError(n)
			}
			message = message[n:]
			continue
		}
		value, n := protowire.ConsumeBytes(message)
		if n < 0 {
			return protowire.ParseError(n)
		}
		message = message[n:]
		if err := f(number, value); err != nil {
			return err
		}
	}
	return nil
}

// parsePod reads a PodResources.
func parsePod(message []byte) (pod podResources, err error) {
	err = fields(message, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			pod.name = string(value)
		case 2:
			pod.namespace = string(value)
		case 3:
			c, err := parseContainer(value)
			pod.containers = append(pod.containers, c)
			return err
		}
		return nil
	})
	return pod, err
}

// parseContainer reads a ContainerResources.
func parseContainer(message []byte) (c containerResources, err error) {
	err = fields(message, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			c.name = string(value)
		case 2:
			d, err := parseDevices(value)
			c.devices = append(c.devices, d)
			return err
		case 5: // a DynamicResource, whose field 4 is a ClaimResource
			return fields(value, func(number protowire.Number, value []byte) error {
				if number != 4 {
					return nil
				}
				claim, err := parseClaim(value)
				c.claims = append(c.claims, claim)
				return err
			})
		}
		return nil
	})
	return c, err
}

// parseDevices reads a ContainerDevices.
func parseDevices(message []byte) (d containerDevices, err error) {
	err = fields(message, func(number protowire.Number, value []byte) error {
		switch number {
		case 1:
			d.resource = string(value)
		case 2:
			d.ids = append(d.ids, string(value))
		}
		return nil
	})
	return d, err
}

// parseClaim reads a ClaimResource. Kubelets before 1.34 tell no device's name.
func parseClaim(message []byte) (c claimed, err error) {
	err = fields(message, func(number protowire.Number, value []byte) error {
		switch number {
		case 1: // a CDIDevice, with its name in field 1
			return fields(value, func(number protowire.Number, value []byte) error {
				if number == 1 {
					c.cdi = append(c.cdi, string(value))
				}
				return nil
			})
		case 2:
			c.driver = string(value)
		case 4:
			c.name = string(value)
		}
		return nil
	})
	return c, err
}
