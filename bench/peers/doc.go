// Package peers drives queues that run on Node.js, from their published npm packages. Each queue runs in a process of
// its own.
//
// # The files
//
//   - peers.go: Peer, Open: a queue on Node.js, and its settings
//   - install.go: Available: finds Node.js, and installs the npm packages
//   - child.go: child: the process on Node.js, and the commands that it answers
package peers
