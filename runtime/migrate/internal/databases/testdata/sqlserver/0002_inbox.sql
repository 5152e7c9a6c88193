CREATE TABLE SCHEMA.PREFIXinbox_row (
  sequence   bigint IDENTITY(1, 1) NOT NULL PRIMARY KEY,
  scope      int           NOT NULL,
  source     int           NOT NULL,
  lane       bigint        NOT NULL,
  event_type nvarchar(255) NOT NULL
);

CREATE TABLE SCHEMA.PREFIXinbox_dead (
  scope      int           NOT NULL,
  source     int           NOT NULL,
  lane       bigint        NOT NULL,
  event_type nvarchar(255) NOT NULL
);

CREATE TABLE SCHEMA.PREFIXinbox_receipt (
  source          int           NOT NULL,
  idempotency_key nvarchar(255) NOT NULL,
  PRIMARY KEY (source, idempotency_key)
);
go
CREATE VIEW SCHEMA.PREFIXinbox AS SELECT sequence, scope, source, lane, event_type FROM SCHEMA.PREFIXinbox_row;
GO
