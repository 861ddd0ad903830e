//! A counter in a TPM 2, which goes up and never back, whoever has the machine's disks. Through the programs of
//! tpm2-tools, so that nothing of it is linked; which TPM is meant they know (`TPM2TOOLS_TCTI`, else the machine's own).

use holdfast_failure::{Exit, Failure, Outcome};
use std::process::{Command, Stdio};

/// Where owners of TPMs have their counters (TCG, registry of reserved handles).
const OWNERS: u32 = 0x0180_0000;
/// How many places there are.
const PLACES: u32 = 1 << 22;
/// The owner reads it and counts; a failure locks nobody out; it is a counter.
const ATTRIBUTES: &str = "ownerread|ownerwrite|no_da|nt=1";

/// The counter of one volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counter {
    index: u32,
}

impl Counter {
    /// That of the volume of this name.
    pub fn of(volume: &[u8; 16]) -> Counter {
        let name = u32::from_le_bytes(volume[..4].try_into().expect("4 of 16 bytes"));
        Counter { index: OWNERS | (name % PLACES) }
    }

    /// Its place in the TPM, for people.
    pub fn place(self) -> String {
        format!("{:#010x}", self.index)
    }

    /// Whether the TPM has it.
    ///
    /// # Errors
    /// There is no TPM, or no tpm2-tools.
    pub fn exists(self) -> Outcome<bool> {
        let listed = String::from_utf8_lossy(&run("tpm2_getcap", &["handles-nv-index"])?).to_lowercase();
        let place = format!("{:x}", self.index);
        Ok(listed.lines().any(|line| line.trim().trim_start_matches("- 0x").trim_start_matches('0') == place))
    }

    /// Makes it. It begins above all that counters of this TPM ever were.
    ///
    /// # Errors
    /// The TPM refuses.
    pub fn make(self) -> Outcome {
        run("tpm2_nvdefine", &[&self.place(), "-C", "o", "-s", "8", "-a", ATTRIBUTES])?;
        self.increment()
    }

    /// How far it is.
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

    /// Counts one more.
    ///
    /// # Errors
    /// The TPM refuses.
    pub fn increment(self) -> Outcome {
        run("tpm2_nvincrement", &[&self.place(), "-C", "o"]).map(drop)
    }

    /// Gives its place back.
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
