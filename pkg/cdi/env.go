package cdi

import (
	"fmt"
	"slices"
	"strings"
)

// ParseEnv checks NAME=VALUE. Names that look like a secret's are refused: spec
// files are readable by everyone. So is what the specs set themselves.
func ParseEnv(s string) (string, error) {
	name, value, ok := strings.Cut(s, "=")
	switch {
	case !ok || !validEnvName(name):
		return "", fmt.Errorf("env %q: must be NAME=VALUE, the name of letters, digits and '_'", name)
	case looksSecret(name):
		return "", fmt.Errorf("env %s looks like a secret, and spec files can be read by everyone: "+
			"pass it to the container in another way (podman run --env %s)", name, name)
	case name == "NVIDIA_VISIBLE_DEVICES":
		return "", fmt.Errorf("env %s is set by the GPU spec itself: another value makes NVIDIA's legacy hook add GPUs of its own choice", name)
	case strings.ContainsAny(value, "\x00\n"):
		return "", fmt.Errorf("env %s: the value has a NUL or newline in it", name)
	}
	return s, nil
}

func validEnvName(name string) bool {
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool {
		return !(r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z')
	})
}

// looksSecret goes by the words of a name, so that HF_TOKEN and
// AWS_SECRET_ACCESS_KEY are secrets and TOKENIZERS_PARALLELISM is none.
func looksSecret(name string) bool {
	for i, word := range strings.Split(strings.ToUpper(name), "_") {
		switch word {
		case "KEY", "KEYS", "PASS", "AUTH":
			return true
		case "PWD": // MYSQL_PWD, but not PWD
			return i > 0
		}
		if strings.HasSuffix(word, "TOKEN") || strings.HasSuffix(word, "APIKEY") {
			return true
		}
		for _, part := range []string{"SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL"} {
			if strings.Contains(word, part) {
				return true
			}
		}
	}
	return false
}

// mergeEnv is env with more added; of two for one name the later one stays.
func mergeEnv(env, more []string) []string {
	for _, variable := range more {
		name, _, _ := strings.Cut(variable, "=")
		env = slices.DeleteFunc(env, func(old string) bool { return strings.HasPrefix(old, name+"=") })
		env = append(env, variable)
	}
	return env
}
