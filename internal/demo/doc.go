// Package demo delivers webhooks to endpoints that fail, to show how drover fails and recovers.
//
// Run starts three kinds of process. The first one enqueues, watches and reports. Two workers deliver. A receiver plays
// the endpoints of all customers, and logs what it saw. Only that log decides whether anything was lost, never drover's
// tables.
//
//	deliveries.go  what to deliver, and what is wrong with a line
//	demo.go        the run: enqueue, watch, crash, report, deploy the fix, redrive
//	worker.go      the worker's program: the handlers
//	receiver.go    the receiver's program; world.go says how each customer's endpoint behaves
//	tally.go       lost and twice, from the receiver's log
//	child.go       processes that end when their parent does, for whatever reason
//	database.go    the schema, the business table and all SQL
//	report.go      what a person wants to know
//	outage.go      the other story: an endpoint that is down, comes back weak, and judges how deliveries come back
//	weak.go        that endpoint
//	plot.go        requests per second, drawn in a terminal
package demo
