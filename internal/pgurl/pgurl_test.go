package pgurl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Env files may leave quotes and blanks around a value.
func TestParseTrims(t *testing.T) {
	t.Parallel()
	plain := fmt.Sprintf("postgres://u:%s@h.example:5433/app?sslmode=disable", "secret")
	for _, given := range []string{plain, " " + plain, plain + "\n", `"` + plain + `"`, "'" + plain + "'", " ' " + plain + " '\r\n"} {
		config, err := Parse(given)
		if err != nil {
			t.Errorf("%q: %v", given, err)
			continue
		}
		c := config.ConnConfig
		if got := fmt.Sprint(c.User, c.Password, c.Host) + fmt.Sprint(c.Port) + c.Database; got != "usecreth.example5433app" || config.ConnString() != plain {
			t.Errorf("%q: %s, string %q", given, got, config.ConnString())
		}
	}
}

// Good strings, as people have them. Parse may refuse none of them.
func TestParseTakes(t *testing.T) {
	t.Parallel()
	for _, given := range []string{
		"postgresql://u@h", "postgres://me%40server:p%40%3A%2F@h/app", "postgres:///app?host=/var/run/postgresql", "postgres://h1:5432,h2:5433/app",
		"postgres://u@[::1]:5432/app", "postgres://u@[fe80::1%25eth0]/app", "host=/tmp dbname=app user=me@server password='a b=c' search_path=jobs,public",
		"postgres://u:p@h/app?application_name=password-reset&options=-c%20work_mem%3D64MB&app.tenant=7", "host=h sslmode=disable", "host=/cloudsql/project:region:instance user=u", "postgres://u@db_1.internal,bücher.example:5433/app",
		"postgres://u@h/app?pool_max_conns=4&default_query_exec_mode=simple_protocol&application_name=https://example.com/worker",
	} {
		if _, err := Parse(given); err != nil {
			t.Errorf("%q: %v", given, err)
		}
	}
}

// Each of these strings would lead to another server, or show the password when the connection fails.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, given := range malformed() {
		switch config, err := Parse(given); {
		case err == nil:
			t.Errorf("%q: taken for %s at %s", given, config.ConnConfig.User, config.ConnConfig.Host)
		case strings.Contains(err.Error(), "S3cr3t"):
			t.Errorf("%q: %v", given, err)
		}
	}
}

func malformed() []string {
	return []string{
		`"postgres://u:S3cr3t@h/db?sslmode=disable`, `postgres://u:S3cr3t@h:port/db`, `postgres://u:S3cr3t%zz@h/db`, `u:S3cr3t@h/db?sslmode=disable`,
		`postgres:/u:S3cr3t@h/db?a=b`, `postgres:u:S3cr3t@h/db`, `POSTGRES://u:S3cr3t@h/db?sslmode=disable`, `url=postgres://u:S3cr3t@h/db`,
		`DATABASE_URL="postgres://u:S3cr3t@h/db"`, `psql postgres://u:S3cr3t@h/db?sslmode=x`, `postgres://u:p@S3cr3t@h/db`, `postgres://u:p@w:S3cr3t@h/db`,
		`postgres://u:p/S3cr3t@h/db`, `postgres://u%3AS3cr3t@h/db`, `postgres://%3AS3cr3t`, `postgres://=S3cr3t@`, `postgres://u@h/db?host=/u:S3cr3t@h`, "postgres://u:S3cr3t\n@h:x/db", `host=h password=a S3cr3t b=c`, `host=h password='S3cr3t`,
		`host=h port=x password=S3cr3t`, `host=hpassword=S3cr3t`, `dbname=postgres://u:S3cr3t@h/db`, `host=h application_name=xpassword=S3cr3t`,
		`postgres://h/db?sslmode=password=S3cr3t`, `postgres://u@h/db%3Fpassword=S3cr3t`, `postgres://u@h/db?sslmode=x&sslpassword=S3cr3t`,
		`mysql://u:S3cr3t@h/db?x=y`, `postgres://u@h/db?target_session_attrs=S3cr3t`, `postgres://u@h/db?sslmode=require&sslrootcert=/S3cr3t`,
		`postgres://u@h/db?pool_max_conns=S3cr3t`, `postgres://u@h/db?service=S3cr3t`, "host=h\x00password=S3cr3t",
	}
}

// No error holds a secret: neither an error of parsing nor an error of a server that cannot be reached.
func FuzzParse(f *testing.F) {
	const secret = "S3cr3t"
	for _, seed := range malformed() {
		f.Add(seed)
	}
	for _, seed := range []string{
		` "postgres://u:S3cr3t@h/db" `, `postgres://u:S3cr3t@h:5432/db?sslmode=disable`, `host=h user=u password=S3cr3t`, `host=h password='S3cr3t x'`,
		`postgres://h/db?password=S3cr3t`, `postgres://h/db?sslpassword=S3cr3t&p%61ssword=S3cr3t`, `postgres://u:a@h1,h2:1/db?password=S3cr3t`,
	} {
		f.Add(seed)
	}
	password := regexp.MustCompile(`[:=@].*` + secret) // elsewhere the secret may be a plain name or the path of a socket
	f.Fuzz(func(t *testing.T, given string) {
		config, err := Parse(given)
		if err == nil {
			c := config.ConnConfig
			c.LookupFunc = func(_ context.Context, host string) ([]string, error) {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			c.DialFunc = func(_ context.Context, network, addr string) (net.Conn, error) {
				return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("refused: " + addr)}
			}
			names := []string{c.User, c.Database, c.Host}
			for _, fallback := range c.Fallbacks {
				names = append(names, fallback.Host)
			}
			for _, name := range names {
				if strings.Contains(name, secret) && (name[0] == '/' || !password.MatchString(name)) {
					return
				}
			}
			if _, err = pgx.ConnectConfig(t.Context(), c); err == nil {
				t.Fatal("connected")
			}
			err = Explain(err)
		}
		if strings.Contains(fmt.Sprintf("%v %+v", err, err), secret) {
			t.Errorf("%q: %v", given, err)
		}
	})
}
