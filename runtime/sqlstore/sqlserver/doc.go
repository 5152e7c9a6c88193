// Package sqlserver keeps outbox and inbox in SQL Server. The text of every
// statement is generated, and belongs to the service; this package holds the
// behaviour around it.
package sqlserver
