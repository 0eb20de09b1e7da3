//! Conversations of a client that is wrong in each state, in place of the scripts of tlsfuzzer, which no package has.

use super::certificates::Certificates;
use crate::common::{ANY_PORT, serve};
use crate::kv::clients::PYTHON;
use linerate_harness::rerun::is_installed;
use std::process::Command;

#[test]
fn conversations_end_as_by_rfc_8446() {
    if !is_installed(PYTHON, &["-c", "import cryptography"], "python3-cryptography") {
        return;
    }
    let [Some(certificates), Some(others)] = [Certificates::new(), Certificates::new()] else { return };
    let own = certificates.server();
    let required = format!("{own} --tls-client-ca {} --tls-client-auth required", certificates.file("ca.pem"));
    let files = [certificates.file("client.pem"), certificates.file("client.key"), others.file("client.pem")];
    for (options, files) in [(&own, &[][..]), (&required, &files)] {
        let server = serve("echo", &format!("{ANY_PORT} {options}"));
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/tls/conversations.py");
        let mut command = Command::new(PYTHON);
        let address = server.address();
        command.arg("-B").arg(script).args([address.ip().to_string(), address.port().to_string()]).args(files);
        let ended = command.output().unwrap();
        let [output, errors] = [ended.stdout, ended.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(ended.status.success(), "{output}{errors}");
        print!("{output}");
        server.stop();
    }
}
