DROP TRIGGER IF EXISTS SCHEMA.PREFIXoutbox_order;
GO
CREATE TRIGGER SCHEMA.PREFIXoutbox_order ON SCHEMA.PREFIXoutbox INSTEAD OF INSERT AS
BEGIN
  SET NOCOUNT ON;
  INSERT INTO SCHEMA.PREFIXoutbox_row (destination, lane, [key], topic, payload)
  SELECT i.destination, i.lane, i.[key], i.topic + N'; seen', i.payload FROM inserted AS i;
END
GO
