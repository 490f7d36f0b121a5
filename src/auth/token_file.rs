//! Tokens from a file: TOML, one `[[token]]` each. Hashed as soon as they are read; the text is kept nowhere.
//!
//! ```toml
//! [[token]]
//! token = "a-long-random-text-of-16-to-256-characters"
//! tenant = "acme"
//! operations = ["POST /v1/*"]                    # default: all
//! permissions = ["claim", "reconcile", "read_outcomes", "administer"]
//!
//! [[token]]                                      # for the cluster itself: no tenant, no records
//! token = "another-long-random-text"
//! permissions = ["cluster"]
//! ```

use std::{fs, io, path::Path, sync::Arc};

use serde::Deserialize;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::{
    caller::{Caller, Credential},
    grant::{Grant, GrantError},
};
use crate::limits;

/// Why a token file can't be used. Names the entry by its place, never quotes a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// It can't be read.
    #[error("the token file can't be read: {0}")]
    Read(#[from] io::Error),
    /// It isn't TOML of this shape.
    #[error("the token file, line {line}: {reason}")]
    Shape {
        /// Where.
        line: usize,
        /// What is wrong; the words of the parser, without the file's text.
        reason: String,
    },
    /// More entries than allowed.
    #[error("the token file has more than {} tokens", limits::FILE_TOKENS_MAX)]
    TooMany,
    /// A token outside the rule.
    #[error(
        "token {entry} of the token file: a token is {} to {} printable characters without spaces",
        limits::FILE_TOKEN_BYTES_MIN,
        limits::FILE_TOKEN_BYTES_MAX
    )]
    Token {
        /// Its place, from 1.
        entry: usize,
    },
    /// The same token twice: whose call would it be?
    #[error("token {entry} of the token file is the same as token {first}")]
    Twice {
        /// Its place, from 1.
        entry: usize,
        /// The place of the other.
        first: usize,
    },
    /// What it is to be allowed is outside the rules.
    #[error("token {entry} of the token file: {source}")]
    Grant {
        /// Its place, from 1.
        entry: usize,
        /// What is wrong.
        source: GrantError,
    },
}

/// The tokens of one reading of the file.
pub struct TokenFile {
    reading: u64,
    entries: Vec<Entry>,
}

struct Entry {
    digest: [u8; 32],
    caller: Caller,
}

// Digests of tokens aren't shown: a short token could be guessed from them.
impl std::fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenFile({} tokens, reading {})", self.entries.len(), self.reading)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileText {
    #[serde(default)]
    token: Vec<EntryText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryText {
    token: String,
    tenant: Option<String>,
    #[serde(default = "every_operation")]
    operations: Vec<String>,
    permissions: Vec<String>,
}

fn every_operation() -> Vec<String> {
    vec!["*".to_owned()]
}

impl TokenFile {
    /// Reads the file; `reading` tells this reading from the ones before.
    ///
    /// # Errors
    /// [`TokenFileError`]; then nothing of the file is used.
    pub fn read(path: &Path, reading: u64) -> Result<Self, TokenFileError> {
        Self::parse(&fs::read_to_string(path)?, reading)
    }

    /// Reads this text.
    ///
    /// # Errors
    /// [`TokenFileError`].
    pub fn parse(text: &str, reading: u64) -> Result<Self, TokenFileError> {
        let file: FileText = toml::from_str(text).map_err(|error| TokenFileError::Shape {
            line: error.span().map_or(0, |span| line_of(text, span.start)),
            reason: error.message().to_owned(),
        })?;
        if file.token.len() > limits::FILE_TOKENS_MAX {
            return Err(TokenFileError::TooMany);
        }
        let mut entries: Vec<Entry> = Vec::with_capacity(file.token.len());
        for (at, text) in file.token.iter().enumerate() {
            let entry = Entry::parse(text, at + 1, reading)?;
            if let Some(first) = entries.iter().position(|other| other.digest == entry.digest) {
                return Err(TokenFileError::Twice { entry: at + 1, first: first + 1 });
            }
            entries.push(entry);
        }
        Ok(Self { reading, entries })
    }

    /// How many tokens there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Which reading of the file this is.
    pub fn reading(&self) -> u64 {
        self.reading
    }

    /// The caller of this token. Takes the same time wherever it stands, and where it doesn't.
    pub fn find(&self, token: &[u8]) -> Option<&Caller> {
        self.find_digest(&digest(token))
    }

    /// The caller of the token with this digest.
    pub(super) fn find_digest(&self, digest: &[u8; 32]) -> Option<&Caller> {
        let mut found = u32::MAX;
        for (at, entry) in (0u32..).zip(&self.entries) {
            let same: Choice = entry.digest.ct_eq(digest);
            found.conditional_assign(&at, same);
        }
        self.entries.get(found as usize).map(|entry| &entry.caller)
    }
}

impl Entry {
    fn parse(text: &EntryText, entry: usize, reading: u64) -> Result<Self, TokenFileError> {
        let length = limits::FILE_TOKEN_BYTES_MIN..=limits::FILE_TOKEN_BYTES_MAX;
        if !length.contains(&text.token.len()) || !text.token.bytes().all(|b| (0x21..=0x7e).contains(&b)) {
            return Err(TokenFileError::Token { entry });
        }
        let grant = Grant::parse(text.tenant.as_deref(), &text.operations, &text.permissions);
        let Grant { scope, operations, permissions } =
            grant.map_err(|source| TokenFileError::Grant { entry, source })?;
        let digest = digest(text.token.as_bytes());
        let credential = Some(Credential::File { digest, reading });
        let actor: Arc<str> = format!("file:{entry}").into();
        Ok(Self { digest, caller: Caller { scope, actor, operations, permissions, credential } })
    }
}

/// Hashed under a name of its own, so that the digest is of use nowhere else.
fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(b"semel-file-token-v1").chain_update(token).finalize().into()
}

/// The line, from 1, of the byte at this offset.
pub(crate) fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes().iter().take(offset).filter(|b| **b == b'\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        auth::{Method, Scope},
        id::Tenant,
    };

    const ONE: &str = "0123456789abcdef";

    fn entry(token: &str, rest: &str) -> String {
        format!("[[token]]\ntoken = \"{token}\"\n{rest}\n")
    }

    fn reason(text: &str) -> String {
        TokenFile::parse(text, 1).unwrap_err().to_string()
    }

    #[test]
    fn a_token_becomes_its_caller() {
        let text = entry(ONE, "tenant = \"acme\"\noperations = [\"POST *\"]\npermissions = [\"claim\"]")
            + &entry("fedcba9876543210", "permissions = [\"cluster\"]");
        let file = TokenFile::parse(&text, 1).unwrap();
        assert_eq!(file.len(), 2);
        let acme = file.find(ONE.as_bytes()).unwrap();
        assert_eq!(acme.scope(), &Scope::Tenant(Tenant::parse("acme").unwrap()));
        assert_eq!(acme.actor(Some("somebody else")), "file:1");
        assert!(acme.permit(Method::Claim).is_ok() && acme.permit(Method::List).is_err());
        let cluster = file.find(b"fedcba9876543210").unwrap();
        assert_eq!((cluster.scope(), cluster.actor(None)), (&Scope::Cluster, "file:2"));
        for other in ["", "0123456789abcde", "0123456789abcdeF", "0123456789abcdef0"] {
            assert!(file.find(other.as_bytes()).is_none(), "{other}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_place() {
        let good = "tenant = \"a\"\npermissions = [\"claim\"]";
        assert!(reason(&entry("short", good)).contains("token 1 "));
        assert!(reason(&entry("with a space inside", good)).contains("printable"));
        assert!(reason(&(entry(ONE, good) + &entry(ONE, good))).contains("same as token 1"));
        assert!(reason(&entry(ONE, "tenant = \"A\"\npermissions = [\"claim\"]")).contains("lower-case"));
        assert!(reason(&entry(ONE, "tenant = \"a\"\npermissions = [\"all\"]")).contains("permissions are"));
        assert!(reason(&entry(ONE, "tenant = \"a\"\npermissions = []")).contains("permissions are"));
        assert!(reason(&entry(ONE, "tenant = \"a\"\npermissions = [\"cluster\"]")).contains("stands alone"));
        assert!(reason(&entry(ONE, "permissions = [\"claim\"]")).contains("need a tenant"));
        assert!(reason(&entry(ONE, "permissions = [\"cluster\", \"claim\"]")).contains("stands alone"));
        let unknown = reason(&entry(ONE, "tenant = \"a\"\npermisions = [\"claim\"]"));
        assert!(unknown.contains("line 4") && unknown.contains("permisions"), "{unknown}");
        assert!(TokenFile::parse("", 1).unwrap().is_empty());
    }

    /// A token, and a file of them: never a panic, and never a word of what it holds in what is said.
    #[test]
    fn fuzz_tokens() {
        use crate::{auth::TokenText, fuzz::Target};

        const SECRET: &str = "abcdefghijklmnop-planted";
        let good = vec![
            entry(SECRET, "tenant = \"acme\"\noperations = [\"POST *\"]\npermissions = [\"claim\"]").into_bytes(),
            TokenText::draw().reveal().into_bytes(),
        ];
        let words = &["[[token]]\n", "token = ", "permissions = [\"cluster\"]\n", "\"", "[", "semel_", "."];
        Target { name: "tokens", good, words, cases: 3000 }.run(
            |_| {},
            |bytes| {
                let is_text = TokenText::parse(bytes).is_some_and(|token| token.reveal().as_bytes() == bytes);
                let file = std::str::from_utf8(bytes).map(|text| TokenFile::parse(text, 1));
                if let Ok(Err(error)) = &file {
                    assert!(!error.to_string().contains("abcdefghijklmnop"), "{error}");
                }
                is_text || matches!(file, Ok(Ok(_)))
            },
        );
    }

    #[test]
    fn nothing_shows_a_token() {
        let file = TokenFile::parse(&entry(ONE, "permissions = [\"cluster\"]"), 1).unwrap();
        assert_eq!(format!("{file:?}"), "TokenFile(1 tokens, reading 1)");
        assert!(!format!("{:?}", file.find(ONE.as_bytes()).unwrap()).contains("0123"));
        // A line that doesn't parse is the likeliest place for a token to be quoted.
        let broken = format!("[[token]]\ntoken = {ONE}\n");
        assert!(!reason(&broken).contains(ONE), "{}", reason(&broken));
    }
}
