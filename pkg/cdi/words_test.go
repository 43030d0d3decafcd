package cdi

import (
	"strings"
	"testing"
)

func TestParseEnv(t *testing.T) {
	t.Parallel()
	good := []string{"A=", "NCCL_DEBUG=INFO", "TOKENIZERS_PARALLELISM=false", "MAX_TOKENS=5", "PWD=/", "LD_LIBRARY_PATH=/a:/b", "_x=y=z", "KEYBOARD=us"}
	bad := []string{"", "A", "=x", "1A=x", "A B=x", "A-B=x", "A=x\ny", "A=\x00",
		"HF_TOKEN=x", "GITHUBTOKEN=x", "AWS_SECRET_ACCESS_KEY=x", "WANDB_API_KEY=x", "OPENAI_APIKEY=x", "DB_PASSWORD=x", "PGPASSWORD=x",
		"MYSQL_PWD=x", "db_pass=x", "GOOGLE_APPLICATION_CREDENTIALS=x", "NVIDIA_VISIBLE_DEVICES=all"}
	for _, s := range good {
		if _, err := ParseEnv(s); err != nil {
			t.Errorf("%q is refused: %v", s, err)
		}
	}
	for _, s := range bad {
		if _, err := ParseEnv(s); err == nil {
			t.Errorf("%q is accepted", s)
		} else if strings.HasSuffix(s, "=x") && strings.Contains(err.Error(), "=x") {
			t.Errorf("%q: the message shows the value: %v", s, err)
		}
	}
}

func TestParseMount(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"/a:/b", "/a:/b:rw", "/a:/b:ro,noexec,rslave"} {
		if _, err := ParseMount(s); err != nil {
			t.Errorf("%q is refused: %v", s, err)
		}
	}
	for _, s := range []string{"", "/a", "a:/b", "/a:b", "/a:/", "/a/../b:/c", "/a:/b/", "/a:/b:", "/a:/b:rw:x", "/a:/b:rshared"} {
		if _, err := ParseMount(s); err == nil {
			t.Errorf("%q is accepted", s)
		}
	}
}

func TestMountOptions(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"a": ""})
	mounts, err := extraMounts(root, []Mount{{"/a", "/b", nil}, {"/a", "/c", []string{"rw", "noexec", "exec", "slave", "dev"}}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"ro,nosuid,nodev,rbind,rprivate", "rw,nosuid,dev,rbind,slave,exec"} {
		if got := strings.Join(mounts[i].Options, ","); got != want {
			t.Errorf("options are %s, expected %s", got, want)
		}
	}
}

func TestValidateName(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"", "a", "pod-1", "8e0b5a3c-5f51-4b0e-9c7e-2f6d6a1c9b1a", "a_b.c"} {
		if err := ValidateName(s); err != nil {
			t.Errorf("%q is refused: %v", s, err)
		}
	}
	for _, s := range []string{".", "..", "a/b", "-a", "a-", "a b", "a\n", "ä", strings.Repeat("a", 129)} {
		if ValidateName(s) == nil {
			t.Errorf("%q is accepted", s)
		}
	}
}
