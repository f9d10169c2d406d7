package drover_test

import (
	"os"
	"strings"
	"testing"
)

// The code of README.md is, word for word, what the examples run.
func TestCodeOfTheReadme(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("example_readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(raw), "// README.md shows this code; readme_test.go compares the two.\n\n")[1:]
	shown := blocks(t, "README.md", "go")
	if len(shown) != len(parts) {
		t.Fatalf("README.md has %d blocks of go, example_readme_test.go %d", len(shown), len(parts))
	}
	for i, part := range parts {
		code, _, _ := strings.Cut(part, "\n// README.md ends here.\n")
		if shown[i].text != code {
			t.Errorf("%v shows:\n%s\nexample_readme_test.go has:\n%s", shown[i], shown[i].text, code)
		}
	}
}
