//! Certificates of a test's own: an authority, a server in front of an upstream, clients.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, sync::Arc, time::Duration};

use semel::{
    clock::{Clock, SystemClock},
    net::Listener,
    tls::{
        Asked, Bounds, Certificates, ClientStream, Role, TlsFiles, TlsListener, Trust,
        issue::{Authority, Subject},
    },
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// An authority, and what it has certified, in a directory.
pub struct Set {
    dir: tempfile::TempDir,
    authority: Authority,
    ca: String,
}

impl Set {
    pub fn new() -> Self {
        let (authority, issued) = Authority::draw("test", SystemClock::default().wall()).unwrap();
        let set = Self { dir: tempfile::tempdir().unwrap(), authority, ca: issued.cert };
        set.put("ca.pem", &set.ca);
        set
    }

    fn put(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Certifies these names, and writes `NAME.pem` and `NAME-key.pem`.
    pub fn certify(&self, name: &str, hosts: &[&str], uri: Option<&str>) {
        let hosts = hosts.iter().map(|&host| host.to_owned()).collect();
        let subject = Subject { name: name.to_owned(), uri: uri.map(str::to_owned), hosts };
        let issued = self.authority.certify(&subject, SystemClock::default().wall(), DAY).unwrap();
        self.put(&format!("{name}.pem"), &issued.cert);
        self.put(&format!("{name}-key.pem"), &issued.key);
    }

    /// Trust in the authority, with the certificate of this name where one is to be shown.
    pub fn trust(&self, shown: Option<&str>) -> Trust {
        let read = |name: String| fs::read(Path::new(&self.path(&name))).unwrap();
        let shown = shown.map(|name| (read(format!("{name}.pem")), read(format!("{name}-key.pem"))));
        Trust::new(self.ca.as_bytes(), shown.as_ref().map(|(cert, key)| (&cert[..], &key[..]))).unwrap()
    }

    /// `[proxy.tls]` with the certificate `door`, which asks for those of this authority.
    pub fn table(&self) -> String {
        let [cert, key, ca] = ["door.pem", "door-key.pem", "ca.pem"].map(|name| self.path(name));
        format!("[proxy.tls]\ncert = {cert:?}\nkey = {key:?}\nca = {ca:?}\n")
    }

    /// A port with the certificate `service` in front of this address: what comes decrypted goes there.
    pub async fn before(&self, to: SocketAddr) -> SocketAddr {
        self.certify("service", &["127.0.0.1", "localhost"], None);
        let [cert, key] = ["service.pem", "service-key.pem"].map(|name| self.dir.path().join(name));
        let files = TlsFiles { cert, key, ca: None, crl: None, asked: Asked::Optional };
        let certificates = Certificates::read(files, Role::Door, Arc::<SystemClock>::default()).unwrap();
        let bounds = Bounds {
            handshake: Duration::from_secs(10),
            handshakes_max: 64,
            age_max: Duration::from_secs(3600),
            grace: Duration::from_secs(30),
        };
        let inner = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = inner.local_addr().unwrap();
        let listener = TlsListener::new(Box::new(inner), certificates, bounds, None);
        tokio::spawn(async move {
            while let Ok(accepted) = listener.accepted().await {
                let mut stream = accepted.stream;
                tokio::spawn(async move {
                    let mut behind = TcpStream::connect(to).await.unwrap();
                    let _ = copy_bidirectional(&mut stream, &mut behind).await;
                });
            }
        });
        address
    }
}

/// Connects to 127.0.0.1 in this protocol.
pub async fn connect(trust: &Trust, to: SocketAddr, protocol: &[u8]) -> std::io::Result<ClientStream<TcpStream>> {
    let stream = TcpStream::connect(to).await?;
    trust.speaking(&[protocol]).connect("127.0.0.1", stream).await
}
