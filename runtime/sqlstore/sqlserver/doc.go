// Package sqlserver is everything that a store on SQL Server needs beyond its
// SQL text: it implements the seams of the runtime on top of the queries of a
// generated package, and knows database/sql, go-mssqldb, error numbers, lock
// timeouts and transactions that the server has ended.
//
// A generated package hands over its queries as a Queries, bound to a DBTX by a
// function of its own; the types of its query code never leave it. Every batch
// says itself that it runs READ COMMITTED, and every transaction that this
// package begins does too: a session of the pool may have been left with another
// level. CheckDatabase refuses a database that cannot work.
//
// SQL Server ends a transaction in which publishing fails: see NewAppender.
package sqlserver
