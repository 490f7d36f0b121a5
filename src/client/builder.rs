//! How a client is set up.

use std::{
    fmt,
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tonic::metadata::{Ascii, MetadataValue};

use super::{Client, connector::Connector, error::Error};
use crate::{
    clock::{Clock, SystemClock},
    id::ClusterId,
    limits,
    proto::v1,
    tls::Trust,
};

/// Sets up a [`Client`].
///
/// ```no_run
/// # async fn example() -> Result<(), semel::client::Error> {
/// use std::time::Duration;
///
/// let semel = semel::Client::builder()
///     .endpoint("http://127.0.0.1:7171")
///     .endpoint("http://127.0.0.1:7181")
///     .tenant("acme")
///     .deadline(Duration::from_secs(5))
///     .connect()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing happens before connect"]
pub struct Builder {
    endpoints: Vec<String>,
    insecure_plaintext: bool,
    cluster_id: Option<ClusterId>,
    token: Option<Token>,
    connector: Connector,
    authorities: Option<Vec<u8>>,
    certificate: Option<Certificate>,
    pub(super) options: Options,
}

/// A certificate and its key, PEM. Shown nowhere.
#[derive(Clone)]
struct Certificate {
    cert: Vec<u8>,
    key: Vec<u8>,
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Certificate(secret)")
    }
}

/// What the calls of a client are made with.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) tenant: Option<String>,
    pub(super) principal: Option<String>,
    pub(super) authorization: Option<Authorization>,
    pub(super) deadline: Duration,
    pub(super) attempt: Duration,
    pub(super) report: Duration,
    pub(super) stall: Duration,
    pub(super) wall: Wall,
}

/// The date, as this machine believes it.
#[derive(Clone)]
pub(super) struct Wall(Arc<dyn Clock>);

impl Wall {
    pub(super) fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0.wall().0)
    }
}

impl fmt::Debug for Wall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wall")
    }
}

/// A token as it was given. Shown nowhere.
#[derive(Clone)]
struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// The credential of every call. Shown nowhere.
#[derive(Clone)]
pub(super) struct Authorization(pub(super) MetadataValue<Ascii>);

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization(secret)")
    }
}

impl Options {
    /// Fills in what the client was built with where the record names nothing.
    pub(super) fn name(&self, record: &mut Option<v1::RecordId>) {
        let record = record.get_or_insert_default();
        if record.tenant.is_none() {
            record.tenant.clone_from(&self.tenant);
        }
        if record.principal.is_none() {
            record.principal.clone_from(&self.principal);
        }
    }

    /// The request with its credential.
    pub(super) fn request<Q>(&self, message: Q) -> tonic::Request<Q> {
        let mut request = tonic::Request::new(message);
        if let Some(Authorization(value)) = &self.authorization {
            request.metadata_mut().insert("authorization", value.clone());
        }
        request
    }
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            endpoints: Vec::new(),
            insecure_plaintext: false,
            cluster_id: None,
            token: None,
            connector: Connector::default(),
            authorities: None,
            certificate: None,
            options: Options {
                tenant: None,
                principal: None,
                authorization: None,
                deadline: Duration::from_millis(limits::CLIENT_DEADLINE_MS),
                attempt: Duration::from_millis(limits::CLIENT_ATTEMPT_MS),
                report: Duration::from_millis(limits::CLIENT_REPORT_MS),
                stall: Duration::from_millis(limits::CLIENT_STALL_MS),
                wall: Wall(Arc::new(SystemClock::default())),
            },
        }
    }
}

impl Builder {
    /// One more node of the cluster, like `http://127.0.0.1:7171`, or `https://…` together with [`ca`](Self::ca). Any one is enough; several outlive it.
    pub fn endpoint(mut self, endpoint: impl Into<String>) -> Self {
        self.endpoints.push(endpoint.into());
        self
    }

    /// Several nodes more.
    pub fn endpoints<E: Into<String>>(mut self, endpoints: impl IntoIterator<Item = E>) -> Self {
        self.endpoints.extend(endpoints.into_iter().map(Into::into));
        self
    }

    /// The token of every call. The tenant comes from it.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(Token(token.into()));
        self
    }

    /// The tenant of records that name none. With a token it must be the token's.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.options.tenant = Some(tenant.into());
        self
    }

    /// The principal (the caller's end user or account) of records that name none.
    pub fn principal(mut self, principal: impl Into<String>) -> Self {
        self.options.principal = Some(principal.into());
        self
    }

    /// How long a call may take in all, retries included. Default 15 s. Waiting for another owner comes on top.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.options.deadline = deadline;
        self
    }

    /// How long one attempt of a call may take before it is repeated. Default 5 s.
    pub fn attempt_deadline(mut self, attempt: Duration) -> Self {
        self.options.attempt = attempt;
        self
    }

    /// How long an owner's report (complete, release, suspend) is repeated when its result isn't learnt. Default 60 s:
    /// longer than anything else, because an effect has happened whose outcome is known to nobody else.
    pub fn report_deadline(mut self, report: Duration) -> Self {
        self.options.report = report;
        self
    }

    /// The cluster to take answers from. Default: the first that answers. See [`Client::trust_cluster`].
    pub fn cluster_id(mut self, id: ClusterId) -> Self {
        self.cluster_id = Some(id);
        self
    }

    /// Lets the token travel in plaintext outside loopback, for whoever can read the network.
    pub fn insecure_plaintext(mut self) -> Self {
        self.insecure_plaintext = true;
        self
    }

    /// Whose certificates are taken from `https://` nodes: authorities, PEM. No others are.
    pub fn ca(mut self, authorities: impl Into<Vec<u8>>) -> Self {
        self.authorities = Some(authorities.into());
        self
    }

    /// The certificate to present to `https://` nodes, and its key, PEM.
    pub fn certificate(mut self, cert: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.certificate = Some(Certificate { cert: cert.into(), key: key.into() });
        self
    }

    /// The clock that tells the date. Default: the system's. A lease is never counted by it.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.options.wall = Wall(clock);
        self
    }

    /// The network that connections are made over. Default: the system's.
    #[cfg(feature = "server")]
    pub fn net(mut self, net: Arc<dyn crate::net::Net>) -> Self {
        self.connector.net = Some(net);
        self
    }

    /// Connects to the first node that can be reached.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if none can be, [`Error::Configuration`] if an option can't work.
    pub async fn connect(self) -> Result<Client, Error> {
        let client = self.connect_lazy()?;
        client.reach().await?;
        Ok(client)
    }

    /// A client that connects when it is first used: for services that start before their Semel does.
    ///
    /// # Errors
    /// [`Error::Configuration`] if an option can't work.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn connect_lazy(mut self) -> Result<Client, Error> {
        // Whoever has an authority to trust is not led to a node without one.
        let has_secret = self.token.is_some() || self.authorities.is_some();
        let plaintext_anywhere = self.insecure_plaintext || !has_secret;
        if let Some(Token(token)) = self.token.take() {
            let value = format!("Bearer {token}").parse().map_err(|_| Error::Configuration {
                option: "token",
                problem: "it has a character that no token has".to_owned(),
            })?;
            self.options.authorization = Some(Authorization(value));
        }
        let trust = match (&self.authorities, &self.certificate) {
            (None, None) => None,
            (None, Some(_)) => {
                return Err(wrong_ca("a certificate is presented to https:// nodes alone; name their `ca`"));
            }
            (Some(authorities), shown) => {
                let shown = shown.as_ref().map(|shown| (shown.cert.as_slice(), shown.key.as_slice()));
                let trust = Trust::new(authorities, shown).map_err(|error| wrong_ca(&error.to_string()))?;
                Some(trust.speaking(&[b"h2"]))
            }
        };
        let endpoints: Vec<String> = self.endpoints.iter().flat_map(|one| one.split(',')).map(str::to_owned).collect();
        let connector = Connector { trust, ..self.connector };
        Client::start(&endpoints, plaintext_anywhere, connector, self.cluster_id, self.options)
    }
}

fn wrong_ca(problem: &str) -> Error {
    Error::Configuration { option: "ca", problem: problem.to_owned() }
}

/// Whether a host is this machine: an address literal in 127.0.0.0/8, `::1`, or `localhost`.
pub(super) fn is_loopback(host: &str) -> bool {
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    literal.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()) || host.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_this_machine_alone() {
        for host in ["127.0.0.1", "127.9.9.9", "[::1]", "::1", "LocalHost"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in ["192.0.2.1", "localhost.example", "127.0.0.1.example", "[::]", "0.0.0.0"] {
            assert!(!is_loopback(host), "{host}");
        }
    }

    #[tokio::test]
    async fn a_token_never_leaves_the_machine_in_plaintext() {
        let with = |token: bool| {
            let builder = Client::builder().endpoint("http://192.0.2.7:7171");
            if token { builder.token("semel_secret") } else { builder }
        };
        assert!(matches!(with(true).connect_lazy(), Err(Error::Configuration { .. })));
        assert!(with(true).insecure_plaintext().connect_lazy().is_ok());
        assert!(with(false).connect_lazy().is_ok());
    }

    #[test]
    fn a_token_is_shown_nowhere() {
        let authorization = Authorization("Bearer semel_hidden".parse().unwrap());
        let builder = Client::builder().token("semel_hidden");
        assert!(!format!("{authorization:?} {builder:?}").contains("hidden"));
    }
}
