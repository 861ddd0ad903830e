//! Certificates of an authority of the test.

use super::run;
use std::fs;
use std::path::Path;
use std::process::Command;

fn openssl(folder: &Path, line: &str) {
    let mut command = Command::new("openssl");
    run(command.current_dir(folder).args(line.split_whitespace()));
}

/// Makes an authority in a folder (`ca.pem`), and for each name and subject a certificate by it for 127.0.0.1
/// (`NAME.pem`), with its key (`NAME.key`).
pub fn certificates(folder: &Path, wanted: &[(&str, &str)]) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(folder, &format!("req -x509 {key} -subj /CN=authority -keyout ca.key -out ca.pem -days 2"));
    for (name, subject) in wanted {
        openssl(folder, &format!("req {key} -subj {subject} -keyout {name}.key -out {name}.csr"));
        // etcd's gateway is a client of etcd with the same certificate.
        let extensions = "subjectAltName = IP:127.0.0.1\nextendedKeyUsage = serverAuth, clientAuth\n";
        fs::write(folder.join("extensions"), extensions).expect("written");
        openssl(
            folder,
            &format!(
                "x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out {name}.pem"
            ),
        );
    }
}
