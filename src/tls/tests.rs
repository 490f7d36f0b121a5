//! Real handshakes over loopback.

use std::{
    fs,
    net::SocketAddr,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};

use super::{
    Asked, Bounds, Certificates, Role, TlsError, TlsFiles, TlsListener, TlsNet, Trust,
    issue::{Authority, Issued, Subject},
};
use crate::{
    clock::{Clock, ManualClock},
    id::Time,
    metrics::Metrics,
    net::{Accepted, CertifiedNode, Listener, Net, TcpNet},
};

const WAIT: Duration = Duration::from_secs(20);
const NOW: Time = Time(1_800_000_000_000);
const DAY: Duration = Duration::from_secs(24 * 3600);
const BOUNDS: Bounds = Bounds {
    handshake: Duration::from_secs(5),
    handshakes_max: 64,
    age_max: Duration::from_secs(3600),
    grace: Duration::from_secs(30),
};

/// A directory with two authorities, and a clock that the certificates are judged by.
struct Set {
    dir: tempfile::TempDir,
    clients: Authority,
    peers: Authority,
    clock: Arc<ManualClock>,
}

fn put(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

impl Set {
    fn new() -> Self {
        Self::at(NOW)
    }

    fn at(now: Time) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority = |name: &str| {
            let (authority, issued) = Authority::draw(name, now).unwrap();
            put(&dir.path().join(format!("{name}.pem")), &issued.cert);
            authority
        };
        let (clients, peers) = (authority("clients-ca"), authority("peers-ca"));
        Self { clients, peers, clock: Arc::new(ManualClock::at(now)), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn now(&self) -> Time {
        self.clock.wall()
    }

    fn files(&self, name: &str, issued: &Issued, ca: Option<&str>, asked: Asked) -> TlsFiles {
        let (cert, key) = (self.path(&format!("{name}.pem")), self.path(&format!("{name}-key.pem")));
        put(&cert, &issued.cert);
        put(&key, &issued.key);
        TlsFiles { cert, key, ca: ca.map(|ca| self.path(ca)), crl: None, asked }
    }

    fn door(&self, hosts: &[&str]) -> Issued {
        let subject =
            Subject { name: "door".into(), uri: None, hosts: hosts.iter().map(|&host| host.to_owned()).collect() };
        self.clients.certify(&subject, self.now(), DAY).unwrap()
    }

    fn node(&self, id: u64) -> Issued {
        node_of(&self.peers, "semel", id, self.now())
    }

    fn peer(&self, id: u64, issued: &Issued) -> Arc<Certificates> {
        let files = self.files(&format!("node-{id}"), issued, Some("peers-ca.pem"), Asked::Required);
        let role = Role::Peer { cluster_name: "semel".into(), node: id };
        Certificates::read(files, role, self.clock.clone()).unwrap()
    }
}

fn node_of(authority: &Authority, cluster: &str, id: u64, now: Time) -> Issued {
    let subject = Subject { name: "node".into(), uri: Some(format!("semel://{cluster}/node/{id}")), hosts: Vec::new() };
    authority.certify(&subject, now, DAY).unwrap()
}

/// Listens, and hands over what it accepted.
async fn listen(certificates: &Arc<Certificates>, bounds: Bounds) -> (Arc<TlsListener>, SocketAddr, Arc<Metrics>) {
    let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, metrics) = (inner.local_addr().unwrap(), Arc::new(Metrics::default()));
    let listener = TlsListener::new(Box::new(inner), Arc::clone(certificates), bounds, Some(Arc::clone(&metrics)));
    (Arc::new(listener), address, metrics)
}

/// What the next connection is; it answers one byte.
fn accept(listener: &Arc<TlsListener>) -> tokio::task::JoinHandle<Accepted> {
    let listener = Arc::clone(listener);
    tokio::spawn(async move {
        let mut accepted = listener.accepted().await.unwrap();
        accepted.stream.write_all(b"!").await.unwrap();
        accepted.stream.flush().await.unwrap();
        accepted
    })
}

async fn greeted(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> std::io::Result<u8> {
    timeout(WAIT, stream.read_u8()).await.expect("an answer or an end")
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_client_meets_a_door_whose_name_and_authority_fit() {
    // Clients judge by the machine's own date.
    let set = Set::at(crate::clock::SystemClock::default().wall());
    let ca = fs::read(set.path("clients-ca.pem")).unwrap();
    let issued = set.door(&["localhost", "127.0.0.1"]);
    let files = set.files("door", &issued, Some("clients-ca.pem"), Asked::Optional);
    let certificates = Certificates::read(files, Role::Door, set.clock.clone()).unwrap();
    let (listener, address, metrics) = listen(&certificates, BOUNDS).await;
    let trust = Trust::new(&ca, None).unwrap().speaking(&[b"h2"]);
    for host in ["localhost", "127.0.0.1"] {
        let accepted = accept(&listener);
        let mut stream = trust.connect(host, TcpStream::connect(address).await.unwrap()).await.unwrap();
        assert_eq!(greeted(&mut stream).await.unwrap(), b'!');
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        assert_eq!(stream.get_ref().1.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        let accepted = accepted.await.unwrap();
        assert!(accepted.shown.is_none() && accepted.node.is_none() && accepted.retires.is_some());
    }
    // With a certificate of the same authority, which is asked for.
    let uri = "semel://semel/client/billing";
    let subject = Subject { name: "billing".into(), uri: Some(uri.into()), hosts: Vec::new() };
    let own = set.clients.certify(&subject, set.now(), DAY).unwrap();
    let shows = Trust::new(&ca, Some((own.cert.as_bytes(), own.key.as_bytes()))).unwrap();
    let accepted = accept(&listener);
    let mut stream = shows.connect("localhost", TcpStream::connect(address).await.unwrap()).await.unwrap();
    assert_eq!(greeted(&mut stream).await.unwrap(), b'!');
    assert_eq!(accepted.await.unwrap().shown.unwrap().uris, [uri]);

    let going_on = accept(&listener);
    // Another name, another authority: the client goes away. A client of another authority is sent away.
    assert!(trust.connect("other.example", TcpStream::connect(address).await.unwrap()).await.is_err());
    let others = fs::read(set.path("peers-ca.pem")).unwrap();
    let doubts = Trust::new(&others, None).unwrap();
    assert!(doubts.connect("localhost", TcpStream::connect(address).await.unwrap()).await.is_err());
    let own = set.peers.certify(&subject, set.now(), DAY).unwrap();
    let shows = Trust::new(&ca, Some((own.cert.as_bytes(), own.key.as_bytes()))).unwrap();
    let refused = async {
        let mut stream = shows.connect("localhost", TcpStream::connect(address).await?).await?;
        stream.read_u8().await
    };
    assert!(refused.await.is_err());
    until("three handshakes are counted", || metrics.encode().contains("reason=\"handshake_failed\"} 3")).await;
    assert!(!going_on.is_finished(), "none of them reached the door");
    going_on.abort();
}

#[tokio::test]
async fn nothing_older_than_tls_1_3_is_spoken() {
    let set = Set::new();
    let files = set.files("door", &set.door(&["localhost"]), None, Asked::Optional);
    let certificates = Certificates::read(files, Role::Door, set.clock.clone()).unwrap();
    let (listener, address, _) = listen(&certificates, BOUNDS).await;
    let accepted = accept(&listener);
    // A hello of TLS 1.2: ECDHE suites, named groups, signature algorithms, and no list of versions.
    let mut hello = vec![3, 3];
    hello.extend([7; 32]);
    hello.push(0);
    hello.extend([0, 4, 0xc0, 0x2b, 0xc0, 0x2f, 1, 0]);
    let extensions = [0, 10, 0, 4, 0, 2, 0, 23, 0, 11, 0, 2, 1, 0, 0, 13, 0, 4, 0, 2, 4, 3];
    hello.extend((extensions.len() as u16).to_be_bytes());
    hello.extend(extensions);
    let mut message = vec![1, 0];
    message.extend((hello.len() as u16).to_be_bytes());
    message.extend(hello);
    let mut record = vec![22, 3, 1];
    record.extend((message.len() as u16).to_be_bytes());
    record.extend(message);
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&record).await.unwrap();
    let mut told = Vec::new();
    timeout(WAIT, stream.read_to_end(&mut told)).await.unwrap().unwrap();
    assert_eq!((told[0], told.last()), (21, Some(&70)), "an alert, protocol_version: {told:?}");
    // Plain text is no handshake either.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    told.clear();
    timeout(WAIT, stream.read_to_end(&mut told)).await.unwrap().unwrap();
    assert!(!told.starts_with(b"HTTP"));
    assert!(!accepted.is_finished());
    accepted.abort();
}

#[tokio::test]
async fn nodes_know_each_other_by_their_certificates() {
    let set = Set::new();
    let (one, two) = (set.peer(1, &set.node(1)), set.peer(2, &set.node(2)));
    let (listener, address, metrics) = listen(&one, BOUNDS).await;
    let address = address.to_string();
    let net = TlsNet::new(Arc::new(TcpNet::default()), Arc::clone(&two));
    let accepted = accept(&listener);
    let mut stream = net.connect_to(1, &address).await.unwrap();
    assert_eq!(greeted(&mut stream).await.unwrap(), b'!');
    assert_eq!(accepted.await.unwrap().node, Some(CertifiedNode(2)));
    // Another node answers there than was meant.
    let accepted = accept(&listener);
    let refused = net.connect_to(3, &address).await.err().unwrap();
    assert!(refused.to_string().contains("no certificate of node 3"), "{refused}");
    // It was let in, and has gone already.
    let _ = accepted.await;
    // A certificate of the authority that names no node of this cluster, of another authority, or that has ended.
    let stranger = |issued: Issued, ca: &str| {
        let files = set.files("stranger", &issued, Some(ca), Asked::Required);
        Certificates::read(files, Role::Peer { cluster_name: "other".into(), node: 2 }, set.clock.clone()).unwrap()
    };
    let going_on = accept(&listener);
    let named = stranger(node_of(&set.peers, "other", 2, NOW), "peers-ca.pem");
    // It judges by its own name of the cluster, and so takes nothing from node 1 either.
    assert!(TlsNet::new(Arc::new(TcpNet::default()), named).connect_to(1, &address).await.is_err());
    until("a node of another cluster is told apart", || metrics.encode().contains("reason=\"not_a_node\"} 1")).await;
    let (other, kept) = Authority::draw("other", NOW).unwrap();
    put(&set.path("other-ca.pem"), &(kept.cert.clone() + &fs::read_to_string(set.path("peers-ca.pem")).unwrap()));
    let files = set.files("impostor", &node_of(&other, "semel", 2, NOW), Some("other-ca.pem"), Asked::Required);
    let role = || Role::Peer { cluster_name: "semel".into(), node: 2 };
    let impostor = Certificates::read(files, role(), set.clock.clone()).unwrap();
    let tried = async |certificates: Arc<Certificates>| {
        let mut stream = TlsNet::new(Arc::new(TcpNet::default()), certificates).connect_to(1, &address).await?;
        greeted(&mut stream).await
    };
    assert!(tried(impostor).await.is_err(), "an authority that node 1 does not know");
    let old = node_of(&set.peers, "semel", 2, Time(NOW.0 - 3 * 24 * 3600 * 1000));
    assert!(tried(set.peer(2, &old)).await.is_err(), "a certificate that has ended");
    assert!(!going_on.is_finished(), "a stranger reached the door");
    going_on.abort();
    // What can't be a node's certificate doesn't let the node start.
    let files = set.files("wrong", &set.node(7), Some("peers-ca.pem"), Asked::Required);
    let refused = Certificates::read(files, role(), set.clock.clone()).unwrap_err().to_string();
    assert!(refused.contains("semel://semel/node/2"), "{refused}");
}

#[tokio::test]
async fn new_files_are_used_and_old_connections_judged_again() {
    let set = Set::new();
    let (one, two) = (set.peer(1, &set.node(1)), set.peer(2, &set.node(2)));
    let (listener, address, _) = listen(&one, BOUNDS).await;
    let address = address.to_string();
    let net = TlsNet::new(Arc::new(TcpNet::default()), Arc::clone(&two));
    let connect = async || {
        let accepted = accept(&listener);
        let mut stream = net.connect_to(1, &address).await.unwrap();
        assert_eq!(greeted(&mut stream).await.unwrap(), b'!');
        (stream, accepted.await.unwrap())
    };
    let (mut here, mut there) = connect().await;
    assert!(!one.reload().await.unwrap(), "nothing has changed");
    // A new certificate of the same authority: what is open stays.
    set.files("node-1", &set.node(1), None, Asked::Required);
    assert!(one.reload().await.unwrap());
    here.write_u8(1).await.unwrap();
    here.flush().await.unwrap();
    assert_eq!(greeted(&mut there.stream).await.unwrap(), 1);
    // Files that don't fit each other leave what was before in force.
    let kept = fs::read(set.path("node-1.pem")).unwrap();
    put(&set.path("node-1.pem"), &set.node(1).cert);
    assert!(one.reload().await.is_err());
    fs::set_permissions(set.path("node-1-key.pem"), fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(one.reload().await, Err(TlsError::Exposed { .. })));
    assert_eq!(one.reload_failures(), 2);
    fs::write(set.path("node-1.pem"), kept).unwrap();
    fs::set_permissions(set.path("node-1-key.pem"), fs::Permissions::from_mode(0o600)).unwrap();
    let (mut here, mut there) = connect().await;
    // An authority that is known no more takes its certificates with it.
    let (_, other) = Authority::draw("other", NOW).unwrap();
    let before = fs::read_to_string(set.path("peers-ca.pem")).unwrap();
    put(&set.path("peers-ca.pem"), &other.cert);
    assert!(one.reload().await.unwrap());
    assert!(greeted(&mut there.stream).await.is_err());
    drop(there);
    assert!(greeted(&mut here).await.is_err());
    put(&set.path("peers-ca.pem"), &before);
    assert!(one.reload().await.unwrap());
    // One that ends meanwhile is cut at the next look, though no file has changed: at both ends.
    let (mut here, mut there) = connect().await;
    set.clock.advance(2 * DAY);
    assert!(!one.reload().await.unwrap() && !two.reload().await.unwrap());
    assert!(greeted(&mut there.stream).await.is_err() && greeted(&mut here).await.is_err());
}

#[tokio::test]
async fn what_is_taken_back_is_refused() {
    use rcgen::{CertificateRevocationListParams, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber};
    use time::OffsetDateTime;
    let set = Set::new();
    let (authority, kept) = Authority::draw("peers", NOW).unwrap();
    put(&set.path("peers-ca.pem"), &kept.cert);
    let two = node_of(&authority, "semel", 2, NOW);
    let crl = |serial: Option<SerialNumber>| {
        let at = OffsetDateTime::from_unix_timestamp((NOW.0 / 1000) as i64).unwrap();
        let revoked = |serial_number| RevokedCertParams {
            serial_number,
            revocation_time: at,
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: at,
            next_update: at + DAY,
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serial.map(revoked).into_iter().collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let key = KeyPair::from_pem(&kept.key).unwrap();
        let issuer = rcgen::Issuer::from_ca_cert_pem(&kept.cert, key).unwrap();
        put(&set.path("peers.crl"), &list.signed_by(&issuer).unwrap().pem().unwrap());
    };
    let serial = {
        use rustls::pki_types::{CertificateDer, pem::PemObject};
        let der = CertificateDer::from_pem_slice(two.cert.as_bytes()).unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).unwrap();
        SerialNumber::from_slice(parsed.raw_serial())
    };
    crl(None);
    let mut files = set.files("node-1", &node_of(&authority, "semel", 1, NOW), Some("peers-ca.pem"), Asked::Required);
    files.crl = Some(set.path("peers.crl"));
    let role = Role::Peer { cluster_name: "semel".into(), node: 1 };
    let one = Certificates::read(files, role, set.clock.clone()).unwrap();
    let (listener, address, _) = listen(&one, BOUNDS).await;
    let address = address.to_string();
    let net = TlsNet::new(Arc::new(TcpNet::default()), set.peer(2, &two));
    let accepted = accept(&listener);
    let mut stream = net.connect_to(1, &address).await.unwrap();
    assert_eq!(greeted(&mut stream).await.unwrap(), b'!');
    let mut there = accepted.await.unwrap();
    crl(Some(serial));
    assert!(one.reload().await.unwrap());
    assert!(greeted(&mut there.stream).await.is_err(), "what is open is cut");
    let going_on = accept(&listener);
    let again = async { greeted(&mut net.connect_to(1, &address).await?).await };
    assert!(again.await.is_err(), "and is not let in again");
    going_on.abort();
}

#[tokio::test]
async fn handshakes_are_bounded_in_number_and_time_and_connections_in_age() {
    let set = Set::at(crate::clock::SystemClock::default().wall());
    let files = set.files("door", &set.door(&["localhost"]), None, Asked::Optional);
    let certificates = Certificates::read(files, Role::Door, set.clock.clone()).unwrap();
    let bounds = Bounds { handshakes_max: 4, ..BOUNDS };
    let (listener, address, metrics) = listen(&certificates, bounds).await;
    let accepted = accept(&listener);
    // Ten that say nothing; an honest client comes through all the same.
    let mut silent = Vec::new();
    for _ in 0..10 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let trust = Trust::new(&fs::read(set.path("clients-ca.pem")).unwrap(), None).unwrap();
    let mut stream = trust.connect("localhost", TcpStream::connect(address).await.unwrap()).await.unwrap();
    assert_eq!(greeted(&mut stream).await.unwrap(), b'!');
    accepted.await.unwrap();
    assert!(metrics.encode().contains("reason=\"handshakes_max\"} 7"), "{}", metrics.encode());
    assert!(silent[0].read_u8().await.is_err(), "the oldest was cut");

    let short = Duration::from_millis(300);
    let bounds = Bounds { handshake: short, age_max: short, grace: short, ..BOUNDS };
    let (listener, address, metrics) = listen(&certificates, bounds).await;
    let accepted = accept(&listener);
    let mut silent = TcpStream::connect(address).await.unwrap();
    assert!(timeout(WAIT, silent.read_u8()).await.unwrap().is_err());
    assert!(metrics.encode().contains("reason=\"handshake_timeout\"} 1"));
    let mut stream = trust.connect("localhost", TcpStream::connect(address).await.unwrap()).await.unwrap();
    assert_eq!(greeted(&mut stream).await.unwrap(), b'!');
    let mut there = accepted.await.unwrap();
    let (retires, now) = (there.retires.unwrap().0, Instant::now());
    assert!(retires < now + short.mul_f64(1.2), "about its age");
    assert!(greeted(&mut there.stream).await.is_err(), "cut a while later");
    assert!(Instant::now() >= retires + short);
}

#[test]
fn clients_and_peers_have_authorities_of_their_own() {
    let set = Set::new();
    let door = set.files("door", &set.door(&["localhost"]), Some("clients-ca.pem"), Asked::Optional);
    let peer = set.files("node-1", &set.node(1), Some("peers-ca.pem"), Asked::Required);
    TlsFiles::check_apart(&door, &peer).unwrap();
    let both = fs::read_to_string(set.path("peers-ca.pem")).unwrap()
        + &fs::read_to_string(set.path("clients-ca.pem")).unwrap();
    put(&set.path("peers-ca.pem"), &both);
    assert!(matches!(TlsFiles::check_apart(&door, &peer), Err(TlsError::SharedAuthority { .. })));
}

#[test]
fn what_is_wrong_with_a_file_is_told_without_its_content() {
    let set = Set::new();
    let read = |files: TlsFiles| Certificates::read(files, Role::Door, set.clock.clone()).unwrap_err().to_string();
    let files = set.files("door", &set.door(&["localhost"]), Some("clients-ca.pem"), Asked::Optional);
    let missing = TlsFiles { cert: set.path("none.pem"), ..files.clone() };
    assert!(read(missing).contains("none.pem"));
    let swapped = TlsFiles { cert: files.key.clone(), ..files.clone() };
    assert!(read(swapped).contains("holds no certificate"));
    put(&files.key, "-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n");
    let refused = read(files.clone());
    assert!(!refused.contains("c2Vjcm") && !refused.contains("secret"), "{refused}");
    put(&files.key, &set.door(&["localhost"]).key);
    assert!(read(files).contains("door.pem"), "a key of another certificate");
}
