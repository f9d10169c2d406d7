package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
)

// proxy stands between clients and a server, and disturbs their connections as networks do.
type proxy struct {
	listener net.Listener
	done     sync.WaitGroup

	mu     sync.Mutex
	server string // where new connections go
	pairs  map[*pair]bool
	open   chan struct{} // a gate: the channel is closed while bytes may pass
	heard  chan struct{} // a gate for the connections that have sent LISTEN
	heards int           // how many connections have sent LISTEN
	hung   int           // how many of these connections had to wait at the gate in the field heard
	steal  int           // how many replies to COMMIT the proxy still has to drop
	stolen int
	most   int // the highest number of connections at the same time
	closed bool
}

// pair is one connection of a client, with the proxy's connection to the server that belongs to it.
type pair struct {
	client, server *net.TCPConn
	listens, hangs bool // the client has sent LISTEN; the connection had to wait at a gate. The proxy's mutex guards both
}

// reset ends both sides with RST.
func (p *pair) reset() {
	for _, conn := range []*net.TCPConn{p.client, p.server} {
		_ = conn.SetLinger(0) // the connection may be closed by now
		_ = conn.Close()
	}
}

func startProxy(server string) (*proxy, error) {
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, server: server, pairs: map[*pair]bool{}, open: make(chan struct{}), heard: make(chan struct{})}
	close(p.open)
	close(p.heard)
	p.done.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// close ends the proxy, and returns when all its goroutines have ended.
func (p *proxy) close() {
	_ = p.listener.Close()
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.blackHole(false)
	p.hangListeners(false)
	p.cut()
	p.done.Wait()
}

// The method cut resets all connections and returns how many there were.
func (p *proxy) cut() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := len(p.pairs)
	for c := range p.pairs {
		c.reset()
	}
	return n
}

// The method lead makes new connections go to another server, as after a change of a DNS name. Existing connections
// stay with their server.
func (p *proxy) lead(server string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.server = server
}

func (p *proxy) leads() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.server
}

// blackHole makes the proxy hold back all bytes, in both directions, until a call with on false. No byte is lost. The
// bytes pass later, as when TCP sends them again.
func (p *proxy) blackHole(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	shut(&p.open, on)
}

// hangListeners does the same as blackHole, but only to connections that have sent LISTEN or send it later.
func (p *proxy) hangListeners(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	shut(&p.heard, on)
}

// The function shut shuts the gate if the parameter on is true. Otherwise it opens the gate.
func shut(gate *chan struct{}, on bool) {
	select {
	case <-*gate:
		if on {
			*gate = make(chan struct{})
		}
	default:
		if !on {
			close(*gate)
		}
	}
}

// listeners counts the connections that have sent LISTEN so far, and how many of them had to wait at a gate.
func (p *proxy) listeners() (all, hung int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.heards, p.hung
}

// stealCommits drops the next n replies to COMMIT, and resets their connections.
func (p *proxy) stealCommits(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steal = n
}

func (p *proxy) counts() (stolen, most int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stolen, p.most
}

func (p *proxy) accept() {
	for {
		conn, err := p.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		p.done.Go(func() { p.serve(conn.(*net.TCPConn)) })
	}
}

func (p *proxy) serve(client *net.TCPConn) {
	server, err := net.Dial("tcp4", p.leads())
	if err != nil {
		_ = client.SetLinger(0)
		_ = client.Close()
		return
	}
	c := &pair{client: client, server: server.(*net.TCPConn)}
	if !p.enter(c) {
		c.reset()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { p.forward(c) })
	both.Go(func() { p.backward(c) })
	both.Wait()
	c.reset()
	p.mu.Lock()
	delete(p.pairs, c)
	p.mu.Unlock()
}

func (p *proxy) enter(c *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.pairs[c] = true
	p.most = max(p.most, len(p.pairs))
	return true
}

// The method pass waits until bytes of the connection may pass.
func (p *proxy) pass(c *pair) {
	p.mu.Lock()
	gates := []chan struct{}{p.open}
	if c.listens {
		gates = append(gates, p.heard)
		select {
		case <-p.heard:
		default:
			if !c.hangs {
				c.hangs = true
				p.hung++
			}
		}
	}
	p.mu.Unlock()
	for _, gate := range gates {
		<-gate
	}
}

// watch records that a client sends LISTEN. The text is short, so it arrives in one piece.
func (p *proxy) watch(c *pair, said []byte) {
	if !bytes.HasPrefix(said, []byte("Q")) || !bytes.Contains(said, []byte("listen ")) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !c.listens {
		c.listens = true
		p.heards++
	}
}

// The method forward passes on the bytes of the client.
func (p *proxy) forward(c *pair) {
	buf := make([]byte, 32<<10)
	for {
		n, err := c.client.Read(buf)
		p.watch(c, buf[:n])
		p.pass(c)
		if n > 0 {
			if _, err := c.server.Write(buf[:n]); err != nil {
				_ = c.client.Close()
				return
			}
		}
		if err != nil {
			_ = c.server.CloseWrite() // then the server ends the session and closes its side
			return
		}
	}
}

// The method backward passes on the messages of the server, one by one.
func (p *proxy) backward(c *pair) {
	defer c.client.Close() //nolint:errcheck // the connection may be reset by now
	from := bufio.NewReader(c.server)
	for {
		message, err := readMessage(from)
		p.pass(c)
		if err != nil {
			return
		}
		if isCommit(message) && p.stolenNow(c) {
			c.reset()
			return
		}
		if _, err := c.client.Write(message); err != nil {
			return
		}
	}
}

func (p *proxy) stolenNow(c *pair) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.steal == 0 {
		return false
	}
	p.steal--
	p.stolen++
	delete(p.pairs, c) // the connection is reset, so cut need not know it any more
	return true
}

// readMessage reads one message of the server: a type, a length that includes itself, and a body.
func readMessage(from *bufio.Reader) ([]byte, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length < 4 || length > 1<<30 {
		return nil, errors.New("not a message of Postgres")
	}
	message := make([]byte, 1+length)
	copy(message, head)
	_, err := io.ReadFull(from, message[5:])
	return message, err
}

func isCommit(message []byte) bool {
	return message[0] == 'C' && bytes.Equal(message[5:], []byte("COMMIT\x00"))
}
