use super::{settings::CertificateSettings, *};
use crate::{auth::RequestRates, http::serve::Heads, tls::Asked};

fn source(text: &str) -> Result<Source, ConfigError> {
    Source::parse(Path::new("semel.toml"), text.to_owned())
}

fn checked(text: &str) -> Result<Config, ConfigError> {
    source(text)?.check(Purpose::Serve, Exposure::default())
}

fn reason(text: &str) -> String {
    checked(text).unwrap_err().to_string()
}

#[test]
fn the_printed_file_says_the_defaults() {
    let printed = Settings::default().print();
    assert_eq!(source(&printed).unwrap().settings(), &Settings::default());
    assert_eq!(checked(&printed).unwrap(), checked("").unwrap());
}

#[test]
fn the_printed_file_has_every_key_with_its_documentation() {
    let printed = Settings::default().print();
    let mut keys = 0;
    for (name, _, table) in Settings::default().tables() {
        let head = if name.is_empty() { String::new() } else { format!("\n[{name}]\n") };
        let section = printed.split_once(head.as_str()).expect("every table is printed").1;
        let section = section.split("\n[").next().unwrap_or_default();
        for key in table {
            assert!(!key.doc.is_empty(), "{} has no documentation", key.name);
            let line = |l: &str| l.trim_start_matches("# ").starts_with(&format!("{} = ", key.name));
            assert_eq!(section.lines().filter(|l| line(l)).count(), 1, "{name} {}", key.name);
            keys += 1;
        }
    }
    let all = super::keys::TABLES.iter().map(|(_, keys)| keys.len()).sum::<usize>();
    assert_eq!(keys, Settings::KEYS.len() + all);
}

#[test]
fn what_was_printed_after_a_change_reads_back() {
    let mut settings = Settings { node_id: 3, advertise: Some("a:1".to_owned()), ..Settings::default() };
    settings.data_dir = "with \"quotes\" and \\".to_owned();
    settings.auth.token_file = Some("tokens.toml".to_owned());
    settings.limits.connections_max = 7;
    settings.auth.certificate.push(CertificateSettings {
        uri: Some("semel://semel/client/billing".to_owned()),
        tenant: Some("acme".to_owned()),
        operations: vec!["POST *".to_owned()],
        permissions: vec!["claim".to_owned()],
        ..CertificateSettings::default()
    });
    assert_eq!(source(&settings.print()).unwrap().settings(), &settings);
}

#[test]
fn a_certificate_is_described_whole_or_refused_by_its_number() {
    let one = "[[auth.certificate]]\nuri = \"semel://semel/client/a\"\ntenant = \"acme\"\npermissions = [\"claim\"]\n";
    assert_eq!(checked(one).unwrap().certified.len(), 1);
    let bad = [
        (one.replace("uri", "dns") + &one.replace("uri = \"semel://semel/client/a\"", ""), "number 2"),
        (one.replace("claim", "rule"), "permissions are"),
        (one.to_owned() + one, "named twice"),
        (one.replace("tenant", "tennant"), "tennant"),
    ];
    for (text, expected) in bad {
        assert!(reason(&text).contains(expected), "{}", reason(&text));
    }
}

#[test]
fn json_web_tokens_are_taken_by_whole_rules_alone() {
    let whole = "[auth.jwt]\njwks_file = \"jwks.json\"\nissuer = \"https://issuer.example\"\naudience = \"semel\"\n";
    let rules = checked(whole).unwrap().jwt.expect("rules");
    assert_eq!((rules.tenant_claim.as_str(), rules.age_max), ("semel_tenant", Duration::from_secs(3600)));
    assert_eq!(checked("").unwrap().jwt, None);
    let bad = [
        (whole.replace("audience = \"semel\"\n", ""), "needs"),
        (whole.replace("https://issuer.example", ""), "needs"),
        (whole.to_owned() + "tenant_claim = \"\"\n", "without a name"),
        (whole.to_owned() + "age_max_s = 0\n", "age_max_s"),
        (whole.to_owned() + "algorithms = [\"none\"]\n", "algorithms"),
    ];
    for (text, expected) in bad {
        assert!(reason(&text).contains(expected), "{}", reason(&text));
    }
}

#[test]
fn defaults_hold() {
    let config = checked("").unwrap();
    assert_eq!((config.node_id, config.store, config.access), (1, StoreKind::Fjall, Access::Closed));
    assert_eq!(config.listen, "127.0.0.1:7171".parse().unwrap());
    assert_eq!(config.raft.election_max, Duration::from_millis(1600));
    assert_eq!(config.limits.wal_segment_bytes, 64 << 20);
    assert_eq!(config.forming, Forming::OnInit);
    let dev = Source::default().check(Purpose::Dev, Exposure::default()).unwrap();
    assert_eq!((dev.access, dev.forming), (Access::Open, Forming::ByItself));
}

#[test]
fn unknown_keys_are_named_with_line_and_hint() {
    let text = "node_id = 2\n\n[raft]\nelection_ms_mn = 5\n";
    assert!(
        reason(text)
            .starts_with("semel.toml, line 4: unknown key `raft.election_ms_mn`; did you mean `raft.election_ms_min`?")
    );
    assert!(reason("listn = \"a\"").contains("line 1: unknown key `listn`; did you mean `listen`?"));
    assert!(reason("[limit]\n").contains("did you mean `[limits]`?"));
    assert!(reason("heartbeat_ms = 3").contains("did you mean `raft.heartbeat_ms`?"));
    let far = reason("something_else_entirely = 1");
    assert!(far.contains("`something_else_entirely`;") && !far.contains("did you mean"), "{far}");
    assert!(!reason(&format!("{} = 1", "x".repeat(100_000))).contains("did you mean"));
}

#[test]
fn what_is_not_there_yet_is_refused_and_not_passed_over() {
    let both = reason("[seal]\nkey_file = \"k\"\nkey_command = [\"c\"]");
    assert!(both.contains("line 3") && both.contains("exclude each other"), "{both}");
    assert!(reason("[seal]\nkey_command = []").contains("must name a program"));
    let sealed = |text: &str| checked(text).unwrap().seal;
    assert_eq!(sealed("[seal]\nkey_file = \"k\""), Some(KeySource::File("k".into())));
    let words = vec!["c".to_owned(), "a b".to_owned()];
    assert_eq!(sealed("[seal]\nkey_command = [\"c\", \"a b\"]"), Some(KeySource::Command(words)));
    assert_eq!(sealed(""), None);
}

#[test]
fn wrong_types_and_syntax_name_their_line() {
    assert!(reason("node_id = 1\nlisten = 7171\n").starts_with("semel.toml, line 2: "));
    assert!(reason("node_id = -1").starts_with("semel.toml, line 1: "));
    assert!(reason("node_id = 1\nnode_id = 2\n").starts_with("semel.toml, line 2: "));
    assert!(reason("listen = \n").starts_with("semel.toml, line 1: "));
    assert!(reason("raft = 1").starts_with("semel.toml, line 1: "));
}

#[test]
fn values_outside_their_bounds_name_key_and_line() {
    for (text, key, line) in [
        ("node_id = 0", "`node_id`", 1),
        ("\nstore = \"rocksdb\"", "`store`", 2),
        ("store = \"memory\"", "`store`", 1),
        ("[limits]\nwal_segment_bytes = 1000", "`limits.wal_segment_bytes`", 2),
        ("[limits]\nsnapshot_log_bytes = 4194303", "`limits.snapshot_log_bytes`", 2),
        ("[limits]\nscrub_hours = 0", "`limits.scrub_hours`", 2),
        ("[limits]\nconnections_max = 0", "`limits.connections_max`", 2),
        ("[limits]\nconnections_per_address_max = 0", "`limits.connections_per_address_max`", 2),
        ("[limits]\nidle_timeout_s = 0", "`limits.idle_timeout_s`", 2),
        ("[limits]\nhead_timeout_ms = 99", "`limits.head_timeout_ms` is 99; it must be from 100 to 600000", 2),
        (
            "[limits]\nbody_idle_timeout_ms = 3600001",
            "`limits.body_idle_timeout_ms` is 3600001; it must be from 100 to",
            2,
        ),
        ("[limits]\nhead_bytes_max = 8191", "`limits.head_bytes_max` is 8191; it must be from 8192 to 1048576", 2),
        ("[limits]\nhead_fields_max = 1001", "`limits.head_fields_max` is 1001; it must be from 16 to 1000", 2),
        (
            "[limits]\nstreams_per_connection_max = 0",
            "`limits.streams_per_connection_max` is 0; it must be from 1 to",
            2,
        ),
        ("[limits]\ntoken_requests_per_s = 0", "`limits.token_requests_per_s` is 0; it must be from 1 to 16777216", 2),
        ("[limits]\ntenant_requests_per_s = 16777217", "`limits.tenant_requests_per_s` is 16777217; it must be", 2),
        ("[raft]\nheartbeat_ms = 0", "`raft.heartbeat_ms`", 2),
        ("[raft]\nelection_ms_min = 300", "`raft.election_ms_min`", 2),
        ("[raft]\nelection_ms_max = 900", "`raft.election_ms_max`", 2),
        ("listen = \"7171\"", "`listen`", 1),
        ("advertise = \"http://a:1\"", "`advertise`", 1),
        ("peer_listen = \"127.0.0.1:7171\"", "`peer_listen`", 1),
        ("data_dir = \"\"", "`data_dir`", 1),
        ("[auth]\ntoken_file = \"\"", "`auth.token_file`", 2),
    ] {
        let refused = reason(text);
        let expected = format!("semel.toml, line {line}: {key}");
        assert!(
            refused.strip_prefix(&expected).is_some_and(|rest| rest.starts_with(' ') || key.contains(' ')),
            "{text:?}: {refused}"
        );
    }
}

#[test]
fn requests_are_bounded_as_the_file_says() {
    let text = "[limits]\nhead_timeout_ms = 100\nhead_bytes_max = 8192\nhead_fields_max = 16\nbody_idle_timeout_ms = 200\n\
                streams_per_connection_max = 2\ntoken_requests_per_s = 3\ntenant_requests_per_s = 4\n[metrics]\ntenant_labels = true\n";
    let config = checked(text).unwrap();
    let ms = Duration::from_millis;
    let heads = Heads { timeout: ms(100), bytes_max: 8192, fields_max: 16, streams_max: 2 };
    let rates = RequestRates { token_per_s: Some(3), tenant_per_s: Some(4) };
    assert_eq!(config.limits.requests, Requests { heads, body_idle: ms(200), rates });
    assert!(config.tenant_labels);
    let defaults = checked("").unwrap();
    let heads = Heads { timeout: ms(10_000), bytes_max: 16_384, fields_max: 100, streams_max: 256 };
    let rates = RequestRates { token_per_s: None, tenant_per_s: None };
    assert_eq!(defaults.limits.requests, Requests { heads, body_idle: ms(30_000), rates });
    assert!(!defaults.tenant_labels);
}

#[test]
fn flags_go_before_the_file() {
    let flags = Overrides { node_id: Some(9), token_file: Some("t".to_owned()), ..Overrides::default() };
    let source = source("node_id = 2\nlisten = \"127.0.0.1:1\"\n").unwrap().with(flags);
    let config = source.check(Purpose::Serve, Exposure::default()).unwrap();
    assert_eq!((config.node_id, config.listen.port()), (9, 1));
    assert_eq!(config.access, Access::TokenFile("t".into()));
}

#[test]
fn outside_loopback_each_listener_needs_its_own_word() {
    let text = "listen = \"0.0.0.0:7171\"\npeer_listen = \"0.0.0.0:7172\"\nadmin_listen = \"0.0.0.0:7173\"\n";
    let judge = |purpose, exposure| source(text).unwrap().check(purpose, exposure).map_err(|e| e.to_string());
    let mut exposure = Exposure::default();
    let refused = judge(Purpose::Serve, exposure).unwrap_err();
    assert!(refused.contains("loopback") && refused.contains("--insecure-plaintext-clients"), "{refused}");
    exposure.plaintext_clients = true;
    assert!(judge(Purpose::Serve, exposure).unwrap_err().contains("--insecure-plaintext-peers"));
    exposure.plaintext_peers = true;
    assert!(judge(Purpose::Serve, exposure).unwrap_err().contains("--insecure-plaintext-admin"));
    exposure.plaintext_admin = true;
    assert!(judge(Purpose::Serve, exposure).is_ok());
    assert!(judge(Purpose::Dev, exposure).unwrap_err().contains("--insecure-no-authentication"));
    exposure.no_authentication = true;
    assert!(judge(Purpose::Dev, exposure).is_ok());
}

#[test]
fn a_port_with_certificates_needs_no_flag() {
    let files = |name: &str| format!("{{ cert = \"{name}.pem\", key = \"{name}-key.pem\", ca = \"{name}-ca.pem\" }}");
    let text = format!(
        "listen = \"0.0.0.0:7171\"\npeer_listen = \"0.0.0.0:7172\"\nadmin_listen = \"0.0.0.0:7173\"\ncluster_name = \"prod-1\"\n\
         [tls]\nreload_s = 2\nconnection_age_max_s = 60\nclient = {}\npeer = {}\nadmin = {}\n",
        files("c"),
        files("p"),
        files("a")
    );
    let config = checked(&text).unwrap();
    assert_eq!((config.cluster_name.as_str(), config.tls.reload), ("prod-1", Duration::from_secs(2)));
    let peer = config.tls.peer.unwrap();
    assert_eq!((peer.asked, peer.ca), (Asked::Required, Some("p-ca.pem".into())));
    assert_eq!(config.tls.client.unwrap().asked, Asked::Optional);
    assert!(reason(&text.replace("admin = {", "admin = { cret = 1,")).contains("`tls.admin.cret`; did you mean"));
    for (from, to, said) in [
        ("key = \"c-key.pem\", ", "", "line 8: `tls.client` needs both"),
        (", ca = \"p-ca.pem\"", "", "line 9: `tls.peer` needs `ca`"),
        ("client = {", "client = { client_certificate = \"no\",", "`tls.client` client_certificate"),
        ("prod-1", "Prod", "line 4: `cluster_name` must be"),
        ("reload_s = 2", "reload_s = 0", "`tls.reload_s` is 0"),
    ] {
        let refused = reason(&text.replace(from, to));
        assert!(refused.contains(said), "{refused}");
    }
    // Unencrypted, by the file's own word.
    let plain = text.replace(&format!("client = {}", files("c")), "client = { insecure_plaintext = true }");
    assert_eq!(checked(&plain).unwrap().tls.client, None);
}

#[test]
fn the_examples_can_be_used() {
    let example = include_str!("../../examples/semel.toml");
    let config = checked(example).unwrap();
    assert_eq!(config.access, Access::TokenFile("/etc/semel/tokens.toml".into()));
    let tokens = crate::auth::TokenFile::parse(include_str!("../../examples/tokens.toml"), 1).unwrap();
    assert_eq!(tokens.len(), 4);
}

/// A file of any text: it is one, or the line says why not.
#[test]
fn fuzz_config() {
    let certificate =
        "[[auth.certificate]]\nuri = \"semel://semel/client/a\"\ntenant = \"acme\"\npermissions = [\"claim\"]\n";
    let good = vec![Settings::default().print().into_bytes(), certificate.as_bytes().to_vec(), Vec::new()];
    let words = &[
        "[limits]\n",
        "[tls.client]\n",
        "= ",
        "\"127.0.0.1:1\"",
        "true",
        "18446744073709551616",
        "[[",
        "\"\"\"",
        "node_id = 0\n",
    ];
    crate::fuzz::Target { name: "config", good, words, cases: 600 }.run(
        |_| {},
        |bytes| {
            let read = std::str::from_utf8(bytes).ok().map(checked);
            match read {
                Some(Err(error)) => assert!(!error.to_string().is_empty()),
                Some(Ok(_)) => return true,
                None => {}
            }
            false
        },
    );
}
