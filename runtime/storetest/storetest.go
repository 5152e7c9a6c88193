// Package storetest is the contract of a store, executable. Run holds a
// database with the schema of examples/reference against every guarantee of
// lanebox; the model in memory and the generated stores pass the same suite.
//
// Nothing in the suite waits for luck: it waits for conditions, with a
// deadline, and moves time by asking the harness to end leases and waits.
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/lanebox/lanebox/runtime/event"
	"github.com/lanebox/lanebox/runtime/inbox"
	"github.com/lanebox/lanebox/runtime/lane"
	"github.com/lanebox/lanebox/runtime/outbox"
)

// Names of the reference schema that the suite relies on.
const (
	// Warehouse and Ledger are destinations; order.* and shipment.* go to both,
	// return.* to the warehouse alone, account.opened.v1 to the ledger alone.
	Warehouse = "warehouse"
	Ledger    = "ledger"
	// Mail is the destination of mail.requested.v1, which declares no key.
	Mail = "mail"
	// Orders and Returns are push sources, Payments and Stock pull sources.
	Orders   = "orders"
	Returns  = "returns"
	Payments = "payments"
	Stock    = "stock"
	// Push names the scope that all push sources share; it is no source.
	Push = "push"
)

// Topics of the reference schema.
const (
	orderPlaced    = "order.placed.v1"
	orderCancelled = "order.cancelled.v1"
	shipmentMoved  = "shipment.moved.v1"
	accountOpened  = "account.opened.v1"
	mailRequested  = "mail.requested.v1"
	// returned is declared by no event; a glob routes it to the warehouse.
	returned = "return.accepted"
	unrouted = "nobody.listens"
)

// Features declares what a database is like. The suite believes it.
type Features struct {
	// Buckets is the number of buckets of every scope.
	Buckets int
	// ConcurrentWriters says that two transactions can write at the same time.
	// Without it, Begin waits until no other transaction is open.
	ConcurrentWriters bool
	// Polling says that nothing tells other processes of new messages: the database
	// has no Waker.
	Polling bool
	// Patience bounds every wait for a condition; 0 means 30 s. Only a failing
	// test waits so long.
	Patience time.Duration
	// Short leaves out what only repeats a race more often.
	Short bool
}

// A Harness opens databases for the suite. Tx is the type of the database's
// transactions.
type Harness[Tx any] struct {
	Features Features
	// Open returns a fresh database of the reference schema, without messages.
	// It cleans up with t.Cleanup. At least 12 transactions can be open.
	Open func(t *testing.T) *DB[Tx]
}

// A DB is one database under test. Every function is safe for concurrent use
// and required unless its comment says otherwise.
type DB[Tx any] struct {
	// Scope returns the number of a destination, of a pull source, or of Push.
	Scope func(name string) lane.Scope
	// Source describes a source.
	Source func(name string) inbox.SourceRef

	Begin            func(ctx context.Context) (Tx, error)
	Commit, Rollback func(ctx context.Context, tx Tx) error
	// Appender is the generated writer.
	Appender func(tx Tx) outbox.Appender
	// Insert is a plain SQL INSERT INTO outbox (topic, key, payload) VALUES (…)
	// with literals, as another program would write it; a nil key is NULL.
	Insert func(ctx context.Context, tx Tx, topic string, key *string, payload string) error

	Outbox, Inbox func(scope lane.Scope) lane.Store
	Keeper        lane.Keeper
	Waker         lane.Waker // nil with Polling

	Receive inbox.LogStore
	// ReceiveIn stores one message inside an open transaction, as the receiver
	// does in one of its own. A database with one writer needs none.
	ReceiveIn func(ctx context.Context, tx Tx, source inbox.SourceRef, m inbox.Incoming) error
	// Pull returns the transactions of a pull source, Push those of the relay.
	Pull func(source lane.Scope) inbox.PullStore[Tx]
	Push func() inbox.PushStore[Tx]

	DeadLetters  func(ctx context.Context, scope lane.Scope) ([]lane.DeadLetter, error)
	Replay       func(ctx context.Context, scope lane.Scope, ids ...event.UUID) error
	Park, Unpark func(ctx context.Context, scope lane.Scope, key string) error
	Remove       func(ctx context.Context, scope lane.Scope, lane, sequence int64) error // deletes a waiting row behind the owner's back
	LockWaiters  func(ctx context.Context) (int, error)                                  // number of transactions that wait for a lock; nil when unknown
	Now          func(ctx context.Context) (time.Time, error)                            // the database's clock
	ExpireLeases func(ctx context.Context, scope lane.Scope, owner string) error         // ends the owner's leases as if their time had passed
	MakeDue      func(ctx context.Context, scope lane.Scope) error                       // ends the wait of every retry; parks stay
	AddToTokens  func(ctx context.Context, scope lane.Scope, n int64) error              // adds n to every fencing token, as a restore might
	AgeReceipts  func(ctx context.Context, d time.Duration) error                        // makes every receipt, and every mark on one, older by d
	// Fingerprint changes when any row of lanebox's tables is inserted, changed,
	// deleted or locked; heartbeats are left out.
	Fingerprint func(ctx context.Context) (string, error)
}

// A test is one case of the suite.
type test[Tx any] struct {
	name string
	run  func(e *env[Tx])
}

// openBeside are the cases that hold a transaction open beside another one.
// They mean nothing to a database with one writer and are not run there.
var openBeside = map[string]bool{
	"ReceiverThatBeginsFirstAndCommitsLastIsRelayedLast": true,
	"RelayNeverWaitsForALockedKey":                       true,
}

// means reports whether a case means something to a database with these features.
func (f Features) means(name string) bool {
	if name == "AnnouncementsWakeListeners" {
		return !f.Polling
	}
	return f.ConcurrentWriters || !openBeside[name]
}

// Run runs the whole suite, one sub-test per guarantee and statement.
func Run[Tx any](t *testing.T, h Harness[Tx]) {
	groups := []struct {
		name  string
		tests []test[Tx]
	}{
		{"G1 one in flight per lane", []test[Tx]{
			{"EveryBucketHasOneOwner", everyBucketHasOneOwner[Tx]},
			{"LiveLeaseIsNotAcquired", liveLeaseIsNotAcquired[Tx]},
			{"BusyLanesAreSteppedOver", busyLanesAreSteppedOver[Tx]},
			{"PushOneInFlightOverAllSources", pushOneInFlightOverAllSources[Tx]},
		}},
		{"G2 commit order", []test[Tx]{
			{"RowsOfOneTransactionKeepTheirOrder", rowsOfOneTransactionKeepTheirOrder[Tx]},
			{"LateCommitIsNotOvertaken", lateCommitIsNotOvertaken[Tx]},
			{"FirstInsertOfNewKeyFrom50Writers", firstInsertOfNewKeyFrom50Writers[Tx]},
			{"PlainAndGeneratedWritersMixed", plainAndGeneratedWritersMixed[Tx]},
			{"FannedOutKeepsOrder", fannedOutKeepsOrder[Tx]},
			{"DenseVersionsHaveNoGap", denseVersionsHaveNoGap[Tx]},
			{"ReceiverThatBeginsFirstAndCommitsLastIsRelayedLast", receiverThatCommitsLastIsRelayedLast[Tx]},
			{"OppositeKeyOrderIsTypedOrSucceeds", oppositeKeyOrderIsTypedOrSucceeds[Tx]},
			{"PublishAllNeverDeadlocks", publishAllNeverDeadlocks[Tx]},
			{"KeysAreBytes", keysAreBytes[Tx]},
			{"OversizeKeyIsRefused", oversizeKeyIsRefused[Tx]},
			{"EmptyKeyOnKeyedTopicIsRefused", emptyKeyOnKeyedTopicIsRefused[Tx]},
			{"TopicWithoutRouteIsRefused", topicWithoutRouteIsRefused[Tx]},
			{"TimesUseTheDatabaseClock", timesUseTheDatabaseClock[Tx]},
		}},
		{"G3 parallel across lanes", []test[Tx]{
			{"KeyLockedElsewhereDelaysNoOtherKey", keyLockedElsewhereDelaysNoOtherKey[Tx]},
			{"CursorVisitsEveryLane", cursorVisitsEveryLane[Tx]},
			{"HotUnorderedLaneDelaysNoKeyedLane", hotUnorderedLaneDelaysNoKeyedLane[Tx]},
			{"HeldLaneHoldsOneDestinationOnly", heldLaneHoldsOneDestinationOnly[Tx]},
			{"PullClaimNeverCrossesSources", pullClaimNeverCrossesSources[Tx]},
			{"SameAggregateRunsOnTwoSources", sameAggregateRunsOnTwoSources[Tx]},
			{"RelayNeverWaitsForALockedKey", relayNeverWaitsForALockedKey[Tx]},
		}},
		{"G4 no key, no order", []test[Tx]{
			{"KeylessRowsRunInParallel", keylessRowsRunInParallel[Tx]},
			{"HeldUnorderedRowsArePassed", heldUnorderedRowsArePassed[Tx]},
		}},
		{"G5 retries hold, the dead release", []test[Tx]{
			{"RetryHoldsLaterRows", retryHoldsLaterRows[Tx]},
			{"RetryIsDueByItself", retryIsDueByItself[Tx]},
			{"DeadRowReleasesKey", deadRowReleasesKey[Tx]},
			{"OnDeadPark", onDeadPark[Tx]},
			{"ParkSurvivesFailure", parkSurvivesFailure[Tx]},
			{"ParkReachesALiveOwner", parkReachesALiveOwner[Tx]},
		}},
		{"G6 replay runs behind", []test[Tx]{
			{"ReplayRunsBehindThoseThatPassed", replayRunsBehindThoseThatPassed[Tx]},
			{"ReplayKeepsTheOrderOfTheDead", replayKeepsTheOrderOfTheDead[Tx]},
		}},
		{"G7 nothing is lost", []test[Tx]{
			{"RolledBackIsNeverSeen", rolledBackIsNeverSeen[Tx]},
			{"PayloadBytesUnchanged", payloadBytesUnchanged[Tx]},
			{"HeadersRoundTrip", headersRoundTrip[Tx]},
			{"DeadLettersKeepTheirReason", deadLettersKeepTheirReason[Tx]},
		}},
		{"G8 repeats are bounded", []test[Tx]{
			{"SettledIsNeverFetchedAgain", settledIsNeverFetchedAgain[Tx]},
			{"UnsettledIsRepeatedWithTheSameID", unsettledIsRepeatedWithTheSameID[Tx]},
			{"SettleTellsFencedFromGone", settleTellsFencedFromGone[Tx]},
			{"DuplicateReceiptStoresNothing", duplicateReceiptStoresNothing[Tx]},
			{"SameKeyOtherBodyConflicts", sameKeyOtherBodyConflicts[Tx]},
			{"ReceiptOutlivesItsMessage", receiptOutlivesItsMessage[Tx]},
			{"ReceiptsArePurgedInBatches", receiptsArePurgedInBatches[Tx]},
			{"RefusedMessageIsBuried", refusedMessageIsBuried[Tx]},
			{"PositionMovesWithTheMessages", positionMovesWithTheMessages[Tx]},
		}},
		{"G9 a stale owner changes nothing", []test[Tx]{
			{"StaleOwnerChangesNothing", staleOwnerChangesNothing[Tx]},
			{"TokenSetBackByOneLetsNoStaleOwnerSettle", tokenSetBackByOne[Tx]},
			{"ExpiredLeaseNobodyTookMaySettle", expiredLeaseNobodyTookMaySettle[Tx]},
			{"LeaseEndsByTheDatabaseClock", leaseEndsByTheDatabaseClock[Tx]},
			{"RenewalKeepsALease", renewalKeepsALease[Tx]},
			{"ExpiredBucketsAreTakenAboveTheShare", expiredBucketsAreTakenAboveTheShare[Tx]},
			{"ReleaseIsImmediate", releaseIsImmediate[Tx]},
			{"FetchCostsNothing", fetchCostsNothing[Tx]},
			{"HeartbeatsCountLiveOwners", heartbeatsCountLiveOwners[Tx]},
			{"AnnouncementsWakeListeners", announcementsWakeListeners[Tx]},
		}},
		{"G10 exactly once into the outbox", []test[Tx]{
			{"RelayMovesOnce", relayMovesOnce[Tx]},
			{"RemapRunsInTheTransaction", remapRunsInTheTransaction[Tx]},
			{"HandlerAndCompletionCommitTogether", handlerAndCompletionCommitTogether[Tx]},
			{"CompletionIsFenced", completionIsFenced[Tx]},
			{"CompletionNeedsTheToken", completionNeedsTheToken[Tx]},
		}},
		{"G11 attempts are honest", []test[Tx]{
			{"AttemptsAreThoseRecorded", attemptsAreThoseRecorded[Tx]},
			{"StartedIsRecordedBeforeDelivery", startedIsRecordedBeforeDelivery[Tx]},
			{"CrashedIsReportedUntilReleasedClean", crashedIsReportedUntilReleasedClean[Tx]},
		}},
		{"All together", []test[Tx]{
			{"Hammer", hammer[Tx]},
		}},
	}
	for _, g := range groups {
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.tests {
				if !h.Features.means(c.name) {
					continue
				}
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(newEnv(t, h))
				})
			}
		})
	}
}
