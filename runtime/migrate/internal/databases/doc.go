// Package databases tests package migrate on real databases. It stands apart
// because go mod tidy looks into the tests of the packages that a service
// imports: there, a service on PostgreSQL must find no SQLite driver.
package databases
