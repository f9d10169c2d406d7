// Command bench compares queues side by side on one Postgres.
package main

func main() {}
