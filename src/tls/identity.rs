//! Whom a certificate names.

use rustls::pki_types::CertificateDer;
use x509_parser::{extensions::GeneralName, parse_x509_certificate};

use super::{TlsError, unfit};
use crate::{
    id::{NodeId, Time, parse_decimal},
    net::Shown,
};

/// What the first certificate of a chain says.
pub(super) fn shown(chain: &[CertificateDer<'_>]) -> Result<Shown, TlsError> {
    let unreadable = |reason: &str| unfit("the certificate", reason);
    let leaf = chain.first().ok_or_else(|| unreadable("there is none"))?;
    let (_, leaf) = parse_x509_certificate(leaf).map_err(|_| unreadable("it can't be read"))?;
    let (mut uris, mut names) = (Vec::new(), Vec::new());
    if let Some(alternative) =
        leaf.subject_alternative_name().map_err(|_| unreadable("it names nobody that can be read"))?
    {
        for name in &alternative.value.general_names {
            match name {
                GeneralName::URI(uri) => uris.push((*uri).to_owned()),
                GeneralName::DNSName(name) => names.push((*name).to_owned()),
                _ => {}
            }
        }
    }
    let not_after = u64::try_from(leaf.validity().not_after.timestamp()).unwrap_or(0);
    Ok(Shown { uris, names, not_after: Time(not_after.saturating_mul(1000)) })
}

/// The URI that names a node of a cluster.
pub(super) fn node_uri(cluster_name: &str, node: NodeId) -> String {
    format!("semel://{cluster_name}/node/{node}")
}

/// The node of this cluster that a certificate names: by exactly one URI, and one of this very form.
pub(super) fn node_of(shown: &Shown, cluster_name: &str) -> Option<NodeId> {
    let [uri] = &shown.uris[..] else { return None };
    let id = uri.strip_prefix("semel://")?.strip_prefix(cluster_name)?.strip_prefix("/node/")?;
    parse_decimal(id).filter(|id| *id > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_by_exactly_one_uri() {
        let named = |uris: &[&str]| {
            let uris = uris.iter().map(|uri| (*uri).to_owned()).collect();
            node_of(&Shown { uris, names: Vec::new(), not_after: Time(0) }, "prod")
        };
        assert_eq!(named(&[&node_uri("prod", 12)]), Some(12));
        for other in [
            "semel://prod/node/0",
            "semel://prod/node/01",
            "semel://prod/node/-1",
            "semel://prod/node/1/",
            "semel://prod/client/1",
            "semel://prod2/node/1",
            "semel://pro/node/1",
            "SEMEL://prod/node/1",
            "semel://prod/node/",
            "semel://prod/node/18446744073709551616",
        ] {
            assert_eq!(named(&[other]), None, "{other}");
        }
        assert_eq!(named(&[]), None);
        assert_eq!(named(&["semel://prod/node/1", "semel://prod/node/1"]), None);
        assert_eq!(named(&["semel://prod/node/1", "https://example.org"]), None);
    }
}
