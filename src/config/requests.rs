//! How requests may arrive, and how many.

use std::time::Duration;

use super::{ConfigError, Source, settings::LimitSettings};
use crate::{auth::RequestRates, http::serve::Heads, limits};

/// The requests of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Their heads.
    pub heads: Heads,
    /// How long their bodies may pause.
    pub body_idle: Duration,
    /// How many of one caller.
    pub rates: RequestRates,
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            heads: Heads::default(),
            body_idle: Duration::from_millis(limits::BODY_IDLE_MS),
            rates: RequestRates::default(),
        }
    }
}

impl Source {
    pub(super) fn requests(&self, limits: &LimitSettings) -> Result<Requests, ConfigError> {
        let number = |key, value, bounds| {
            let value = self.within(key, value, bounds)?;
            Ok(u32::try_from(value).expect("every bound of these fits"))
        };
        let ms = |key, value, bounds| self.within(key, value, bounds).map(Duration::from_millis);
        let rate = |key, value: Option<u64>| value.map(|value| number(key, value, limits::REQUESTS_PER_S)).transpose();
        let fields_max = number("limits.head_fields_max", limits.head_fields_max, limits::HEAD_FIELDS_MAX_RANGE)?;
        Ok(Requests {
            heads: Heads {
                timeout: ms("limits.head_timeout_ms", limits.head_timeout_ms, limits::HEAD_TIMEOUT_MS_RANGE)?,
                bytes_max: number("limits.head_bytes_max", limits.head_bytes_max, limits::HEAD_BYTES_MAX_RANGE)?,
                fields_max: fields_max as usize,
                streams_max: number(
                    "limits.streams_per_connection_max",
                    limits.streams_per_connection_max,
                    limits::STREAMS_PER_CONNECTION_MAX_RANGE,
                )?,
            },
            body_idle: ms("limits.body_idle_timeout_ms", limits.body_idle_timeout_ms, limits::BODY_IDLE_MS_RANGE)?,
            rates: RequestRates {
                token_per_s: rate("limits.token_requests_per_s", limits.token_requests_per_s)?,
                tenant_per_s: rate("limits.tenant_requests_per_s", limits.tenant_requests_per_s)?,
            },
        })
    }
}
