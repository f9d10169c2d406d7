// Package demo delivers webhooks to endpoints that behave badly, to show how drover handles failures.
//
// Run runs the whole story with three programs. The calling program enqueues, watches and reports. Two worker processes
// deliver. A receiver plays the endpoints of all customers and logs every request. Run finds lost deliveries only in
// this log, and not in drover's tables.
//
//	deliveries.go  what to deliver, and what is wrong with a line
//	demo.go        the run: enqueue, watch, crash, report, deploy the fix, redrive
//	worker.go      the worker's program: the handlers
//	receiver.go    the receiver's program; world.go says how each customer's endpoint behaves
//	tally.go       which deliveries were lost or accepted twice, from the receiver's log
//	child.go       processes that end with their parent, however the parent ends
//	database.go    the schema, the business table and all SQL
//	report.go      the story and the result, for a person
//	outage.go      the other story: an endpoint that is down, comes back weak, and judges how deliveries come back
//	weak.go        the endpoint of that story
//	plot.go        requests per second, drawn in a terminal
package demo
