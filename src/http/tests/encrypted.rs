//! A real node whose three ports are encrypted, and the client library.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::{
    Client,
    auth::TokenText,
    client::{Done, Error, Verdict},
    clock::{Clock, SystemClock},
    config::{Access, Config, Exposure, Overrides, Purpose, Source, Tls},
    fingerprint::Fingerprint,
    node::Node,
    tls::{
        Asked, TlsFiles, Trust,
        issue::{Authority, Issued, Subject},
    },
};

const WAIT: Duration = Duration::from_secs(30);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn put(dir: &Path, name: &str, issued: &Issued) {
    for (name, text) in [(format!("{name}.pem"), &issued.cert), (format!("{name}-key.pem"), &issued.key)] {
        let path = dir.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
}

/// Certificates of node 1 in this directory.
fn certificates(dir: &Path, tls: Tls) -> Tls {
    let now = SystemClock::default().wall();
    let (clients, of_clients) = Authority::draw("clients", now).unwrap();
    let (peers, of_peers) = Authority::draw("peers", now).unwrap();
    put(dir, "clients-ca", &of_clients);
    put(dir, "peers-ca", &of_peers);
    let hosts = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let door = Subject { name: "door".into(), uri: None, hosts };
    put(dir, "door", &clients.certify(&door, now, DAY).unwrap());
    let node = Subject { name: "node".into(), uri: Some("semel://semel/node/1".into()), hosts: Vec::new() };
    put(dir, "node", &peers.certify(&node, now, DAY).unwrap());
    let files = |name: &str, ca: Option<&str>| {
        let at = |name: &str| dir.join(format!("{name}.pem"));
        let (cert, key) = (at(name), at(&format!("{name}-key")));
        Some(TlsFiles { cert, key, ca: ca.map(at), crl: None, asked: Asked::Required })
    };
    Tls { client: files("door", None), peer: files("node", Some("peers-ca")), admin: files("door", None), ..tls }
}

/// What the console answers to a browser that sends this token.
async fn sign_in(to: SocketAddr, ca: &[u8], token: &str) -> String {
    let stream = TcpStream::connect(to).await.unwrap();
    let trust = Trust::new(ca, None).unwrap().speaking(&[b"http/1.1"]);
    let mut stream = trust.connect("127.0.0.1", stream).await.unwrap();
    let form = format!("token={token}");
    let head = format!(
        "POST /console/session HTTP/1.1\r\nHost: {to}\r\nOrigin: https://{to}\r\nConnection: close\r\n\
         Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n\r\n",
        form.len()
    );
    stream.write_all((head + &form).as_bytes()).await.unwrap();
    let mut text = String::new();
    // Whether the end is announced doesn't matter.
    let _ = timeout(WAIT, stream.read_to_string(&mut text)).await.expect("it ends");
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_a_token_speaks_to_an_encrypted_node_alone() {
    let directory = tempfile::tempdir().unwrap();
    let data_dir = Some(directory.path().join("data").display().to_string());
    let source = Source::default().with(Overrides { data_dir, ..Overrides::default() });
    let config = source.check(Purpose::Dev, Exposure::default()).unwrap();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let first = TokenText::draw();
    let tls = certificates(directory.path(), config.tls);
    let (access, first_token) = (Access::Closed, Some(first.clone()));
    let config = Config { listen: any, peer_listen: any, admin_listen: any, tls, access, first_token, ..config };
    let node = Node::start(config).await.unwrap();
    let endpoint = format!("https://{}", node.listen());
    let ca = fs::read(directory.path().join("clients-ca.pem")).unwrap();

    // The operation is the tenant's, and the token the cluster's: it is known, and refused.
    let refused = async |client: &Client| {
        let operation = client.operation("charge").key("k").fingerprint(Fingerprint::json_text("1").unwrap());
        operation.run(async |_| Verdict::completed(201, "done")).await
    };
    let client = Client::builder().endpoint(&endpoint).ca(ca.clone()).token(first.reveal()).connect().await.unwrap();
    let told = async {
        loop {
            match refused(&client).await {
                Err(Error::Refused(refusal)) if refusal.code == crate::refusal::Code::Forbidden => break,
                Err(_) => sleep(Duration::from_millis(50)).await,
                Ok(Done::Ran(_)) => panic!("a token of the cluster claims nothing"),
                Ok(other) => panic!("{other:?}"),
            }
        }
    };
    timeout(WAIT, told).await.expect("the node answers");
    // Whom the client does not trust it does not speak to; nor unencrypted, to a port that is.
    let others = fs::read(directory.path().join("peers-ca.pem")).unwrap();
    let doubtful = Client::builder().endpoint(&endpoint).ca(others).connect().await;
    assert!(matches!(doubtful, Err(Error::Unreachable { .. })), "{doubtful:?}");
    let unnamed = Client::builder().endpoint(&endpoint).connect().await;
    assert!(matches!(unnamed, Err(Error::Configuration { .. })), "{unnamed:?}");
    let plain = Client::builder()
        .endpoint(format!("http://{}", node.listen()))
        .deadline(Duration::from_millis(500))
        .connect_lazy()
        .unwrap();
    assert!(refused(&plain).await.is_err());
    let signed_in = sign_in(node.admin_listen(), &ca, &first.reveal()).await;
    assert!(signed_in.starts_with("HTTP/1.1 303 "), "{signed_in}");
    assert!(signed_in.contains("set-cookie: __Host-semel=") && signed_in.contains("; Secure;"), "{signed_in}");
    client.close().await;
    node.stop().await;
}
