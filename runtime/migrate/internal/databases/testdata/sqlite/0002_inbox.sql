-- +goose Up
CREATE TABLE PREFIXinbox (
  sequence   INTEGER PRIMARY KEY AUTOINCREMENT,
  scope      INTEGER NOT NULL,
  source     INTEGER NOT NULL,
  lane       INTEGER NOT NULL,
  event_type TEXT    NOT NULL
);

CREATE TABLE PREFIXinbox_dead (
  scope      INTEGER NOT NULL,
  source     INTEGER NOT NULL,
  lane       INTEGER NOT NULL,
  event_type TEXT    NOT NULL
);

CREATE TABLE PREFIXinbox_receipt (
  source          INTEGER NOT NULL,
  idempotency_key TEXT    NOT NULL,
  PRIMARY KEY (source, idempotency_key)
) WITHOUT ROWID;
