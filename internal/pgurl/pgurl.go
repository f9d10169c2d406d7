// Package pgurl parses the connection string of a database. Its errors quote no part of the string, because in a
// malformed string any part may be the password.
package pgurl

import (
	"errors"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

var errForm = errors.New("it is neither a URL of the scheme postgres, in lower case and with two slashes, nor a list of key=value pairs; " +
	"in a URL, write each of @ : / ? # % and blanks in a user name or password as its percent escape, such as %40 for @")

// Parse parses a URL or a keyword string. It first removes the blanks and the pair of quotes that env files leave
// around a value. The config's ConnString is the string without them. Parse refuses every string that Check refuses,
// and more.
func Parse(given string) (*pgxpool.Config, error) {
	text := strings.TrimSpace(given)
	if n := len(text); n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n-1] == text[0] {
		text = strings.TrimSpace(text[1 : n-1])
	}
	config, err := pgxpool.ParseConfig(text)
	if err != nil {
		return nil, reason(err)
	}
	if err := check(config.ConnConfig, true); err != nil {
		return nil, err
	}
	return config, nil
}

func hosts(config *pgx.ConnConfig) []string {
	all := []string{config.Host}
	for _, f := range config.Fallbacks {
		all = append(all, f.Host)
	}
	return all
}

// path reports whether a host is the directory of a Unix socket.
func path(host string) bool { return regexp.MustCompile(`^(/|[A-Z]:\\)[^@=]*$`).MatchString(host) }

// Check refuses a config if pgx has misread its string. pgx takes a URL in quotes, or without its scheme, for a keyword
// string. It would then connect to another server, such as PGHOST, and send the URL to it as the name or the value of a
// parameter. If an @ in a password is not escaped, pgx takes the rest of the password for a part of the host.
func Check(config *pgx.ConnConfig) error { return check(config, false) }

// check is stricter with a string that a person typed. An application's pool may have a role or a database with an odd
// name, or a dialer for an odd host.
func check(config *pgx.ConnConfig, typed bool) error {
	odd := regexp.MustCompile(`(?i)postgres(ql)?://.*:.*@`)
	if typed {
		odd = regexp.MustCompile(`(?i)postgres(ql)?:/|password\s*=|://.*@`)
	}
	values := []string{config.User, config.Database}
	for _, host := range hosts(config) {
		values = append(values, host)
		if _, notIP := netip.ParseAddr(host); notIP == nil || path(host) {
			continue
		}
		if !regexp.MustCompile(`^[\p{L}\p{N}_.:-]*$`).MatchString(strings.TrimLeft(host, " ")) || typed && strings.Contains(host, ":") {
			return errForm
		}
	}
	for key, value := range config.RuntimeParams {
		if !regexp.MustCompile(`^[A-Za-z_][\w.$]*$`).MatchString(key) {
			return errForm
		}
		values = append(values, value)
	}
	if slices.ContainsFunc(values, odd.MatchString) || typed && (strings.ContainsAny(config.User, ":=") || strings.ContainsAny(config.Database, ":@?=&")) {
		return errForm
	}
	return nil
}

// reason returns the fault that pgx found, in words of a fixed list. The text of pgx quotes the string, and cannot
// always hide the password.
func reason(err error) error {
	text := err.Error()
	for _, known := range []string{
		"invalid port", "port numbers to", "failed to configure TLS", "sslmode is invalid", "failed to read service", "invalid connect_timeout",
		"unknown target_session_attrs value", "invalid min_protocol_version", "invalid max_protocol_version", "unknown channel_binding value",
		"invalid require_auth", "invalid sslcertmode", "pool_max_conns", "pool_min_conns", "pool_min_idle_conns", "pool_max_conn_lifetime",
		"pool_max_conn_idle_time", "pool_health_check_period", "pool_ping_timeout", "statement_cache_capacity", "description_cache_capacity",
		"default_query_exec_mode",
	} {
		var number syscall.Errno // the error of a file that cannot be read
		switch {
		case !strings.Contains(text, known):
			continue
		case errors.As(err, &number):
			return errors.New(known + ": " + number.Error())
		case known == "invalid port" || known == "port numbers to":
			return errors.New("invalid port; " + errForm.Error())
		}
		return errors.New(known)
	}
	return errForm
}

// Explain replaces the server's error about a parameter of a new connection, because the server quotes the parameter. It
// returns other errors unchanged.
func Explain(err error) error {
	var refused *pgconn.PgError
	var attempt *pgconn.ConnectError
	if errors.As(err, &attempt) && errors.As(err, &refused) && (refused.Code == "42704" || refused.Code == "22023") {
		return &refusedError{err}
	}
	return err
}

// refusedError is a server's error without its text.
type refusedError struct{ err error }

func (e *refusedError) Error() string {
	return "the server refuses a parameter of the database URL: look for a misspelt key, or a value that it cannot take"
}
func (e *refusedError) Unwrap() error { return e.err }
