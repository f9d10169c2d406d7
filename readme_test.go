package drover_test

import (
	"os"
	"strings"
	"testing"
)

// The code of README.md is, word for word, what Example runs.
func TestCodeOfTheReadme(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("example_readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(raw), "// README.md shows this code; readme_test.go compares the two.\n\n")
	code, _, _ = strings.Cut(code, "\n// README.md ends here.\n")
	shown := blocks(t, "README.md", "go")
	if len(shown) != 1 {
		t.Fatalf("README.md has %d blocks of go", len(shown))
	}
	if shown[0].text != code {
		t.Errorf("%v shows:\n%s\nexample_readme_test.go has:\n%s", shown[0], shown[0].text, code)
	}
}
