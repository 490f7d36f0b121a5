//! Semel binds one caller intent to one durable outcome.
