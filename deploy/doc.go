// Package deploy is a place for files: alerts for Prometheus and a dashboard for Grafana. Its tests run
// each rule and each query with Prometheus' own engine, which no application has to compile in, so it is a
// module of its own.
package deploy
