//! A counter in a TPM 2. It only goes up, even for an attacker who has the machine's disks. It is used
//! through the programs of tpm2-tools, so that no library is linked; they choose the TPM (`TPM2TOOLS_TCTI`,
//! else the machine's own).

use holdfast_failure::{Exit, Failure, Outcome};
use std::process::{Command, Stdio};

/// The first index that owners of TPMs may use for counters (TCG, registry of reserved handles).
const OWNERS: u32 = 0x0180_0000;
/// The number of such indexes.
const PLACES: u32 = 1 << 22;
/// The owner may read and increment it; failures do not lock anybody out; it is a counter.
const ATTRIBUTES: &str = "ownerread|ownerwrite|no_da|nt=1";

/// The counter of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter {
    index: u32,
}

impl Counter {
    /// The counter of the volume with this ID.
    pub fn of(volume: &[u8; 16]) -> Counter {
        let name = u32::from_le_bytes(volume[..4].try_into().expect("4 of 16 bytes"));
        Counter { index: OWNERS | (name % PLACES) }
    }

    /// Its index in the TPM, for people.
    pub fn place(self) -> String {
        format!("{:#010x}", self.index)
    }

    /// Whether the counter exists in the TPM.
    ///
    /// # Errors
    /// There is no TPM, or tpm2-tools are not installed.
    pub fn exists(self) -> Outcome<bool> {
        let listed = String::from_utf8_lossy(&run("tpm2_getcap", &["handles-nv-index"])?).to_lowercase();
        let place = format!("{:x}", self.index);
        Ok(listed.lines().any(|line| line.trim().trim_start_matches("- 0x").trim_start_matches('0') == place))
    }

    /// Creates the counter. Its first value is higher than that of any earlier counter of this TPM.
    ///
    /// # Errors
    /// The TPM refuses.
    pub fn make(self) -> Outcome {
        run("tpm2_nvdefine", &[&self.place(), "-C", "o", "-s", "8", "-a", ATTRIBUTES])?;
        self.increment()
    }

    /// The value of the counter.
    ///
    /// # Errors
    /// The TPM refuses.
    pub fn read(self) -> Outcome<u64> {
        let bytes = run("tpm2_nvread", &[&self.place(), "-C", "o", "-s", "8"])?;
        let bytes: [u8; 8] = bytes.as_slice().try_into().map_err(|_| {
            Failure::new(Exit::Data, format!("the TPM's counter {} is no counter", self.place()))
        })?;
        Ok(u64::from_be_bytes(bytes))
    }

    /// Increments the counter.
    ///
    /// # Errors
    /// The TPM refuses.
    pub fn increment(self) -> Outcome {
        run("tpm2_nvincrement", &[&self.place(), "-C", "o"]).map(drop)
    }

    /// Removes the counter.
    ///
    /// # Errors
    /// The TPM refuses.
    pub fn remove(self) -> Outcome {
        run("tpm2_nvundefine", &[&self.place(), "-C", "o"]).map(drop)
    }
}

fn run(program: &str, arguments: &[&str]) -> Outcome<Vec<u8>> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().map_err(|error| {
        Failure::new(Exit::NoInput, format!("{program} cannot be run: {error}"))
            .hint("it is in Debian's package tpm2-tools")
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let why = said.lines().rev().find(|line| line.starts_with("ERROR")).unwrap_or("it says nothing");
    Err(Failure::new(Exit::Unavailable, format!("the TPM does not do what it is asked ({program}): {why}"))
        .hint("is there a TPM 2, may you use it, and has its owner no password? TPM2TOOLS_TCTI says which is meant"))
}
