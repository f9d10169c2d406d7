package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The nightly run sets every environment variable that enlarges a test, and every test that it
// names exists.
func TestNightlyKnowsEverySizeAndTest(t *testing.T) {
	t.Parallel()
	script, err := os.ReadFile("../../.ci/nightly")
	if err != nil {
		t.Fatal(err)
	}
	var files []string
	for _, pattern := range []string{"*_test.go", "internal/*/*_test.go", "ui/*_test.go"} {
		found, err := filepath.Glob("../../" + pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	var tests strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		tests.Write(text)
	}
	sizes := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^\tsize (DROVER_\w+) \d+ '?[\w|]+'?$`).FindAllStringSubmatch(string(script), -1) {
		sizes[m[1]] = true
	}
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(script), -1) {
		if !strings.Contains(tests.String(), "\nfunc "+name+"(t *testing.T) {") {
			t.Errorf(".ci/nightly runs %s, and there is no such test", name)
		}
	}
	for _, m := range regexp.MustCompile(`(?:sizeOf\(t, |tier\.Size\(t, |Getenv\()"(DROVER_\w+)"`).FindAllStringSubmatch(tests.String(), -1) {
		if !sizes[m[1]] {
			t.Errorf(".ci/nightly does not set %s", m[1])
		}
	}
	if len(sizes) < 7 {
		t.Errorf("found only %v", sizes)
	}
}
