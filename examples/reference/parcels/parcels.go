// Package parcels is a stand-in for a service's own types.
package parcels

import "errors"

// ID identifies a parcel.
type ID string

// Scanned says that a parcel passed a scanner.
type Scanned struct {
	Parcel ID     `json:"parcel"`
	Gate   string `json:"gate"`
}

// Validate refuses scans without a gate.
func (s Scanned) Validate() error {
	if s.Gate == "" {
		return errors.New("gate is missing")
	}
	return nil
}
