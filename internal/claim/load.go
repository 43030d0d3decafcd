package claim

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	convertbeta1 "k8s.io/dynamic-resource-allocation/api/v1beta1"
	convertbeta2 "k8s.io/dynamic-resource-allocation/api/v1beta2"
	"sigs.k8s.io/yaml"
)

// group is the API group of all that is read.
const group = "resource.k8s.io"

// versions are the group's that are known; documents may be of any.
var versions = []string{"v1", "v1beta2", "v1beta1"}

// claim is a ResourceClaim, or what a ResourceClaimTemplate would become.
type claim struct {
	*resourcev1.ResourceClaim
	origin
}

// class is a DeviceClass.
type class struct {
	*resourcev1.DeviceClass
	origin
}

// origin is where an object is written.
type origin struct {
	doc *document
	// path leads to the object in its document, spec to its claim's spec.
	path, spec []string
	// version is the one that it is written in.
	version string
}

// documents are all objects of the input.
type documents struct {
	claims  []claim
	classes []class
	slices  []*resourcev1.ResourceSlice
}

// codec decodes strictly: a field that a version does not have is an error and
// not left out in silence.
type codec struct {
	scheme  *runtime.Scheme
	decoder runtime.Decoder
}

func newCodec() *codec {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		resourcev1.AddToScheme, resourcev1beta1.AddToScheme, resourcev1beta2.AddToScheme, convertbeta1.AddToScheme, convertbeta2.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err) // a mistake in this program
		}
	}
	return &codec{scheme, serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()}
}

// header is what says which type a document is of.
type header struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Items      []json.RawMessage `json:"items"`
}

// load reads a file's objects into all.
func (c *codec) load(all *documents, file string, data []byte) error {
	docs, err := split(file, data)
	if err != nil {
		return err
	}
	for i := range docs {
		d := &docs[i]
		raw, err := yaml.YAMLToJSONStrict([]byte(d.text))
		if err != nil {
			return d.failYAML(err)
		}
		if err := c.object(all, origin{doc: d}, raw); err != nil {
			return err
		}
	}
	return nil
}

// object adds an object, or those of a list. kubectl's lists have a kind; as
// people copy them they may have lost it.
func (c *codec) object(all *documents, at origin, raw []byte) error {
	var h header
	if err := json.Unmarshal(raw, &h); err != nil {
		return at.doc.fail(at.path, "is not an object with apiVersion and kind")
	}
	if h.Items != nil && (h.Kind == "" || strings.HasSuffix(h.Kind, "List")) {
		for i, item := range h.Items {
			inner := at
			inner.path = append(slices.Clone(at.path), "items", fmt.Sprint(i))
			if err := c.object(all, inner, item); err != nil {
				return err
			}
		}
		return nil
	}
	if err := checkHeader(at, h); err != nil {
		return err
	}
	_, at.version, _ = strings.Cut(h.APIVersion, "/")
	object, err := c.decode(raw)
	if err != nil {
		return c.decodeError(at, raw, err)
	}
	return all.add(at, object)
}

func checkHeader(at origin, h header) error {
	kinds := []string{"ResourceClaim", "ResourceClaimTemplate", "DeviceClass", "ResourceSlice"}
	g, version, ok := strings.Cut(h.APIVersion, "/")
	switch {
	case h.Kind == "":
		return at.doc.fail(at.path, "has no kind: expected %s of %s", strings.Join(kinds, ", "), group)
	case !slices.Contains(kinds, h.Kind) || !ok || g != group:
		return at.doc.fail(append(slices.Clone(at.path), "kind"), "%s of %q: expected %s of %s", h.Kind, h.APIVersion, strings.Join(kinds, ", "), group)
	case !slices.Contains(versions, version):
		return at.doc.fail(append(slices.Clone(at.path), "apiVersion"), "version %s of %s is not known: write it in %s", version, group, strings.Join(versions, ", "))
	}
	return nil
}

// decode reads an object of any version as v1.
func (c *codec) decode(raw []byte) (runtime.Object, error) {
	object, kind, err := c.decoder.Decode(raw, nil, nil)
	if err != nil {
		return nil, err
	}
	if kind.Version == "v1" {
		return object, nil
	}
	v1, err := c.scheme.New(resourcev1.SchemeGroupVersion.WithKind(kind.Kind))
	if err != nil {
		return nil, err
	}
	return v1, c.scheme.Convert(object, v1, nil)
}

var unknownField = regexp.MustCompile(`(unknown|duplicate) field "([^"]+)"`)

var wrongType = regexp.MustCompile(`(\S+) into Go struct field \w+\.(\S+) of type (.+)$`)

// decodeError says which field is wrong, and whether the body is of another
// version than the header.
func (c *codec) decodeError(at origin, raw []byte, err error) error {
	text := strings.TrimPrefix(err.Error(), "strict decoding error: ")
	path := at.path
	if m := unknownField.FindStringSubmatch(text); m != nil {
		path = append(slices.Clone(path), fieldPath(m[2])...)
		text = fmt.Sprintf("%s field %q in %s", m[1], m[2], at.version)
	} else if i := strings.Index(text, "json: cannot unmarshal "); i >= 0 {
		text = "has a value of the wrong type: " + text[i+len("json: cannot unmarshal "):]
		if m := wrongType.FindStringSubmatch(text); m != nil {
			text = fmt.Sprintf("%s is a %s, and must be %s", m[2], m[1], m[3])
			path = append(slices.Clone(path), strings.Split(m[2], ".")...)
			if m[1] == "bool" {
				text += " (y, n, yes, no, on and off are booleans in YAML: write them in quotes)"
			}
		}
	}
	for _, other := range versions {
		as := strings.Replace(string(raw), `"`+group+"/"+at.version+`"`, `"`+group+"/"+other+`"`, 1)
		if _, err := c.decode([]byte(as)); other != at.version && err == nil {
			text += fmt.Sprintf(": the body is %s, the apiVersion says %s", other, at.version)
			break
		}
	}
	return at.doc.fail(path, "%s", text)
}

// fieldPath takes "spec.devices.requests[0].count" apart.
func fieldPath(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

func (all *documents) add(at origin, object runtime.Object) error {
	switch o := object.(type) {
	case *resourcev1.ResourceClaim:
		at.spec = append(slices.Clone(at.path), "spec")
		all.claims = append(all.claims, claim{o, at})
	case *resourcev1.ResourceClaimTemplate:
		at.spec = append(slices.Clone(at.path), "spec", "spec")
		c := &resourcev1.ResourceClaim{ObjectMeta: *o.Spec.ObjectMeta.DeepCopy(), Spec: o.Spec.Spec}
		c.Name, c.Namespace = o.Name, o.Namespace
		all.claims = append(all.claims, claim{c, at})
	case *resourcev1.DeviceClass:
		at.spec = append(slices.Clone(at.path), "spec")
		all.classes = append(all.classes, class{o, at})
	case *resourcev1.ResourceSlice:
		all.slices = append(all.slices, o)
	default:
		return at.doc.fail(at.path, "is of an unexpected type %T", object)
	}
	return nil
}
