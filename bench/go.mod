module github.com/drover-queue/drover/bench

go 1.26.0

require github.com/drover-queue/drover v0.0.0

replace github.com/drover-queue/drover => ../
