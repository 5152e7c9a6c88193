// Package schedule decides what a loop that delivers messages does next.
//
// A Machine drives one scope. It is told what happened (an Input) and answers
// with what to do (Effects). It reads no clock, starts no goroutine, performs
// no I/O and draws random numbers only from the generator it was given, so that
// the same inputs always give the same effects. Package engine feeds it.
//
// # Leases
//
// The database is the only authority on who owns a bucket. A bucket's row names
// an owner, a fencing token that rises with every change of owner, and the time
// on the database's clock at which the lease ends. The machine holds a copy, and
// the copy is a guess that can only be too optimistic; three rules keep that
// harmless:
//
//   - Trust ends early. Before a lease is asked for or renewed, the loop notes
//     its own clock. The lease cannot end before that moment plus its length,
//     since the database stamped it later. The machine stops trusting it a
//     tenth of its length before that, so that clocks that run at different
//     speeds, and a delivery that was just being started, do not matter.
//   - When trust ends, or when any answer says that the lease is gone, the
//     bucket is forgotten at once: deliveries in flight are canceled, outcomes
//     that were not recorded are dropped. The lanes of canceled deliveries stay
//     closed to this machine until the deliveries have returned, even if it
//     leases the bucket again.
//   - Whatever is recorded is fenced. If the guess was wrong all the same, for
//     example because the process was frozen, the database changes nothing and
//     says so. The machine never repeats a settlement that was fenced.
//
// A lease that ends without being given back marks its bucket as crashed. The
// next owner treats what may have been in flight as suspects: see probation.go.
//
// # Failure
//
//	a database call fails       outcomes are kept and tried again with backoff
//	                            until trust in their lease ends
//	a renewal fails             nothing, until trust ends
//	a renewal omits a bucket    the lease is lost
//	a settlement is fenced      the lease is lost; its outcomes are counted as
//	                            fenced
//	a message was not there     an operator removed or moved it; counted as gone
//	a delivery never returns    its lane stays closed; other lanes go on
//	the process dies            the lease ends by itself; probation follows
package schedule
