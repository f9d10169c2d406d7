package pg

// A statement over many rows fails as a whole when the database refuses one of them. Bisect finds that row, so that the
// statement succeeds for the others. In SQL, drover_walk does the same.

// maxRefused is the number of refused rows after which a walk gives up, if no row has passed: then probably no single
// row is at fault.
const maxRefused = 100

// Bisect tries all items together. If that fails and a row may be at fault, it tries halves, down to a single item. If
// the single item fails, Bisect passes it to refused, and goes on after it with parts that grow again. An error that is
// no row's fault ends the walk: Bisect returns the error, and does not try the remaining items. An error from refused
// ends the walk in the same way.
func Bisect[T any](items []T, try func([]T) error, refused func(T, error) error) error {
	return walk(items, len(items), try, refused)
}

// BisectFailed does the same as Bisect, for items that have already failed together. It begins with one item, because
// the row at fault is often the first, and each part that fails may take until its time-out.
func BisectFailed[T any](items []T, try func([]T) error, refused func(T, error) error) error {
	return walk(items, 1, try, refused)
}

// walk does the work of Bisect. The first part has step items.
func walk[T any](items []T, step int, try func([]T) error, refused func(T, error) error) error {
	passed, bad := false, 0
	for len(items) > 0 {
		part := items[:min(step, len(items))]
		err := try(part)
		switch {
		case err == nil:
			passed = true
			items, step = items[len(part):], 2*step
		case !RowsFault(err) || !passed && bad == maxRefused:
			return err
		case len(part) == 1:
			bad++
			if err := refused(part[0], err); err != nil {
				return err
			}
			items, step = items[1:], 1
		default:
			step = (len(part) + 1) / 2
		}
	}
	return nil
}
