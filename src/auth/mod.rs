//! Who calls, and what they may do.
//!
//! An edge hands the head of a request to [`Authenticator::admit`] and gets a [`Caller`], before it reads a
//! body. What a service function takes is `&Caller`, so that a path without one doesn't compile. The caller then
//! judges, in this order: permission ([`permission`]: one table, denied by default), tenant, operation. Each of the
//! two refusals has one text, whatever the reason, so that it tells nothing.

pub mod authenticator;
pub mod caller;
pub mod certificate;
mod failures;
mod generations;
mod grant;
mod jwks;
pub mod jwt;
pub mod origin;
pub mod permission;
mod rates;
mod refused;
pub mod scope;
pub mod token;
pub mod token_file;

pub use authenticator::{Authenticator, LogTokens};
pub use caller::{Caller, Scope};
pub(crate) use failures::network;
pub use grant::GrantError;
pub use jwks::KeySetError;
pub use permission::{Method, Permission, Permissions};
pub use rates::{Rated, RequestRates};
pub use refused::Refusals;
pub use token::TokenText;
pub use token_file::{TokenFile, TokenFileError};
