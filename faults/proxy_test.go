package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// echo is a server that answers every byte with a message of Postgres: 'c' with a CommandComplete of COMMIT.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				for in := bufio.NewReader(conn); ; {
					b, err := in.ReadByte()
					if err != nil {
						_ = conn.Close()
						return
					}
					_, _ = conn.Write(answerTo(b))
				}
			}()
		}
	}()
	return listener.Addr().String()
}

func answerTo(b byte) []byte {
	if b == 'c' {
		return []byte("C\x00\x00\x00\x0bCOMMIT\x00")
	}
	return []byte{'Z', 0, 0, 0, 5, b}
}

// ask sends one byte and reads the answer.
func ask(conn net.Conn, b byte) error {
	if _, err := conn.Write([]byte{b}); err != nil {
		return err
	}
	got := make([]byte, len(answerTo(b)))
	if _, err := io.ReadFull(conn, got); err != nil {
		return err
	}
	if !bytes.Equal(got, answerTo(b)) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// listen says what pgx says, of which echo answers each byte.
func listen(t *testing.T, conn net.Conn) {
	t.Helper()
	said := []byte("Q\x00\x00\x00\x11listen \"a_b\"\x00")
	if _, err := conn.Write(said); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(conn, make([]byte, len(said)*len(answerTo(0)))); err != nil {
		t.Fatal(err)
	}
}

func TestProxy(t *testing.T) {
	t.Parallel()
	p, err := startProxy(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	dial := func() net.Conn {
		conn, err := net.Dial("tcp4", p.address())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	conn := dial()
	for _, b := range []byte("acb") {
		if err := ask(conn, b); err != nil {
			t.Fatalf("%c: %v", b, err)
		}
	}

	// The reply to a commit is dropped, and that one alone.
	p.stealCommits(1)
	if err := ask(conn, 'a'); err != nil {
		t.Errorf("an answer that is no reply to COMMIT: %v", err)
	}
	if err := ask(conn, 'c'); err == nil {
		t.Error("the reply to COMMIT came through")
	}
	if stolen, _ := p.counts(); stolen != 1 {
		t.Errorf("%d replies stolen, want 1", stolen)
	}
	conn = dial()
	if err := ask(conn, 'c'); err != nil {
		t.Errorf("the next reply to COMMIT: %v", err)
	}

	// A black hole holds back what it gets, until it ends.
	p.blackHole(true)
	answered := make(chan error, 1)
	go func() { answered <- ask(conn, 'a') }()
	select {
	case err := <-answered:
		t.Errorf("answered from within a black hole: %v", err)
	default:
	}
	p.blackHole(false)
	if err := <-answered; err != nil {
		t.Errorf("after the black hole: %v", err)
	}

	// One that has sent LISTEN hangs alone.
	listener := dial()
	listen(t, listener)
	p.hangListeners(true)
	go func() { answered <- ask(listener, 'a') }()
	err = until(t.Context(), "it hangs", 10*time.Second, func() (bool, error) {
		_, hung := p.listeners()
		return hung == 1, nil
	})
	if err != nil {
		t.Error(err)
	}
	if err := ask(conn, 'a'); err != nil {
		t.Errorf("beside a listener that hangs: %v", err)
	}
	select {
	case err := <-answered:
		t.Errorf("a listener that hangs was answered: %v", err)
	default:
	}
	p.hangListeners(false)
	if err := <-answered; err != nil {
		t.Errorf("a listener that hung: %v", err)
	}
	if all, _ := p.listeners(); all != 1 {
		t.Errorf("%d listeners, want 1", all)
	}

	if n := p.cut(); n != 2 {
		t.Errorf("%d connections cut, want 2", n)
	}
	if err := ask(conn, 'a'); err == nil {
		t.Error("answered on a connection that was cut")
	}
}
