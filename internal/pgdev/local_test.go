//go:build unix

package pgdev

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestFindBinaries(t *testing.T) {
	t.Parallel()
	v14, v15, v17, v18 := fakeBinaries(t, "14.20"), fakeBinaries(t, "15.9"), fakeBinaries(t, "17.10"), fakeBinaries(t, "18beta1")
	v17old := fakeBinaries(t, "17.9")
	none, broken := t.TempDir(), fakeBinaries(t, "")
	noInitdb := fakeBinaries(t, "18.0")
	if err := os.Remove(filepath.Join(noInitdb, "initdb")); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name              string
		inPath, elsewhere []string
		want, err         string
	}{
		{name: "the first in PATH", inPath: []string{none, v15, v17}, elsewhere: []string{v17}, want: v15},
		{name: "too old in PATH", inPath: []string{v14}, elsewhere: []string{v15}, want: v15},
		{name: "the newest elsewhere", elsewhere: []string{v15, v17old, v17, v14}, want: v17},
		{name: "a beta is of its major", elsewhere: []string{v17, v18}, want: v18},
		{name: "incomplete or broken", elsewhere: []string{noInitdb, broken, v15, none}, want: v15},
		{name: "only old ones", inPath: []string{none}, elsewhere: []string{v14}, err: "15 or newer is needed, found only 14.20 (" + v14 + ")"},
		{name: "nothing", inPath: []string{none}, elsewhere: []string{broken}, err: "no postgres and initdb in PATH or where packages put them"},
		{name: "not in BinDir", inPath: []string{none}, err: "no postgres and initdb that run in " + none},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b, err := findBinaries(t.Context(), test.inPath, test.elsewhere)
			if b.dir != test.want || (err == nil) != (test.err == "") || err != nil && err.Error() != test.err {
				t.Errorf("findBinaries = %q, %v; want %q, %s", b.dir, err, test.want, test.err)
			}
		})
	}
}

func TestParseVersion(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n": "15.18",
		"postgres (PostgreSQL) 17.2 (Homebrew)\n":                "17.2",
		"postgres (PostgreSQL) 19devel\n":                        "19devel",
		"postgres (EnterpriseDB Advanced Server) 16\n":           "",
		"postgres (PostgreSQL) \n":                               "",
		"postgres (PostgreSQL) unknown\n":                        "",
		"":                                                       "",
	} {
		got, err := parseVersion(line)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("parseVersion(%q) = %q, %v; want %q", line, got, err, want)
		}
	}
}

// fakeBinaries makes a directory of scripts that only print their version. Without a version they fail.
func fakeBinaries(t *testing.T, version string) string {
	t.Helper()
	dir := openDir(t)
	script := "#!/bin/sh\n[ \"$1\" = --version ] && echo 'postgres (PostgreSQL) " + version + "' || { echo no disk; exit 1; }\n"
	if version == "" {
		script = "#!/bin/sh\nexit 127\n"
	}
	for _, name := range []string{"postgres", "initdb"} {
		writeFile(t, filepath.Join(dir, name), script, 0o755)
	}
	return dir
}

func writeFile(t *testing.T, path, content string, mode os.FileMode) {
	t.Helper()
	// Another test may fork a child meanwhile, which keeps the file open for writing. Then nobody can execute the file.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// localBinaries returns the directory of this machine's server binaries, which the tests need.
func localBinaries(t *testing.T) binaries {
	t.Helper()
	inPath, elsewhere := binDirs()
	b, err := findBinaries(t.Context(), inPath, elsewhere)
	if err != nil {
		t.Fatalf("these tests need an installed server: %v", err)
	}
	return b
}
