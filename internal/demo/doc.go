// Package demo delivers webhooks to endpoints that behave badly, to show how drover handles failures.
//
// Run runs the whole story with three programs. The calling program enqueues, watches and reports. Two worker processes
// deliver. A receiver plays the endpoints of all customers and logs every request. Run finds lost deliveries only in
// this log, and not in drover's tables.
//
// # The files
//
//   - demo.go: Run, Options, Result: the run: enqueue, watch, crash, report, deploy the fix, redrive
//   - deliveries.go: Delivery, ReadDeliveries: the deliveries to make, from a file, and what is wrong with a line
//   - worker.go: Work: the worker's program: its handlers, and the HTTP requests that they send
//   - receiver.go: Receive: the receiver's program: an HTTP server that answers as world.go decides, and logs each
//     request
//   - world.go: how each customer's endpoint behaves
//   - tally.go: Tally: which deliveries were lost or accepted twice, from the receiver's log
//   - child.go: Program: processes that end with their parent, however the parent ends
//   - database.go: the server, the schema, the business table events, and all SQL
//   - report.go: page: the story and the result, for a person: sentences, tables, histograms
//   - outage.go: the other story: an endpoint is down and comes back weak, and its log shows how well it takes the
//     deliveries that come back: OutageResult, Phase
//   - weak.go: weakEndpoint: the endpoint of that story
//   - plot.go: requests per second, drawn in a terminal
package demo
