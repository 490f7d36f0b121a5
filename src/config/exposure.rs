//! Which listeners others can reach, and what has to be said for that.

use std::net::SocketAddr;

use super::{ConfigError, Exposure, Purpose, Tls};

/// Refuses a listener that others can reach, unless it is encrypted or the command line allows it.
pub(super) fn check_exposure(
    purpose: Purpose,
    exposure: Exposure,
    listen: [SocketAddr; 3],
    tls: &Tls,
) -> Result<(), ConfigError> {
    let [clients, peers, admin] = listen;
    let consequence = "everything on it, tokens too, may travel unencrypted";
    let listeners = [
        (
            "listen",
            clients,
            tls.client.is_some(),
            "give it [tls.client], ",
            exposure.plaintext_clients,
            "--insecure-plaintext-clients",
        ),
        (
            "peer_listen",
            peers,
            tls.peer.is_some(),
            "give it [tls.peer], ",
            exposure.plaintext_peers,
            "--insecure-plaintext-peers",
        ),
        (
            "admin_listen",
            admin,
            tls.admin.is_some(),
            "give it [tls.admin], ",
            exposure.plaintext_admin,
            "--insecure-plaintext-admin",
        ),
    ];
    for (key, address, is_encrypted, instead, is_allowed, flag) in listeners {
        if !address.ip().is_loopback() && !is_encrypted && !is_allowed {
            return Err(ConfigError::Exposed { key, address, instead, flag, consequence });
        }
    }
    let reachable = [("listen", clients), ("admin_listen", admin)].into_iter().find(|(_, a)| !a.ip().is_loopback());
    match reachable {
        Some((key, address)) if purpose == Purpose::Dev && !exposure.no_authentication => Err(ConfigError::Exposed {
            key,
            address,
            instead: "",
            flag: "--auth, or --insecure-no-authentication",
            consequence: "whoever reaches it may do everything",
        }),
        _ => Ok(()),
    }
}
