// Package postgres is everything that a store on PostgreSQL needs beyond its SQL
// text: it implements the seams of the runtime on top of the queries of a
// generated package, and knows pgx, error codes, planner settings,
// notifications and transactions.
//
// A generated package hands over its queries as a Queries, bound to a DBTX by a
// function of its own; the types of sqlc's code never leave it. Every statement
// runs READ COMMITTED, and CheckIsolation refuses a pool with another default:
// locks are only worth something when the statement behind them sees what was
// committed before they were granted.
package postgres
