package droverotel_test

import (
	"testing"

	"github.com/drover-queue/drover/internal/pgdev/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }
