//! Why a client refuses a server's view: one variant for each offence, with the expected and the actual
//! value. Variants are encodable, so that evidence files hold them beside the view.

use crate::structure::{LogHead, Record};
use borsh::{BorshDeserialize, BorshSerialize};
use holdfast_content::{DeviceId, PrincipalId};
use std::fmt;

/// Names one operation: "device 3's operation 17".
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, BorshSerialize, BorshDeserialize)]
pub struct Operation {
    /// The device that made it.
    pub device: DeviceId,
    /// Its number among the device's operations.
    pub number: u64,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {} of device {}", self.number, self.device.0)
    }
}

impl From<Record> for Operation {
    fn from(record: Record) -> Self {
        Operation { device: record.device, number: record.number }
    }
}

/// Who is to blame, as far as one can tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blame {
    /// The server, or whoever controls it: no honest server sends this.
    Server,
    /// The device that signed it (or the server together with it).
    Device(DeviceId),
    /// Local state is missing or older than what this device has signed: restored, copied or deleted.
    LocalState,
    /// Nobody is to blame: the superuser has declared what happened.
    Nobody,
}

/// A view, or an answer, that must not be accepted. After one the mount is frozen.
#[derive(Clone, PartialEq, Eq, Debug, BorshSerialize, BorshDeserialize, thiserror::Error)]
pub enum Alarm {
    /// A part is over its limit or self-contradictory.
    #[error("the server's view is malformed: {what}{}", by(.device))]
    Malformed {
        /// The device whose structure or certificate is malformed, if it belongs to one.
        device: Option<DeviceId>,
        /// The fault, in words.
        what: String,
    },
    /// The view shows a device that the membership does not list.
    #[error("the view holds something of device {}, which is no member", .0.0)]
    UnknownDevice(DeviceId),
    /// A signature does not verify.
    #[error("the signature on {0} is not its device's")]
    BadSignature(Operation),
    /// An operation was signed after its device had been removed.
    #[error(
        "{operation} was ordered at membership version {found}, but the device was removed at {removed_at}"
    )]
    RemovedDevice {
        /// The operation.
        operation: Operation,
        /// Version of the membership that removed the device.
        removed_at: u64,
        /// The membership version it was ordered at.
        found: u64,
    },
    /// The view has no membership, or another than the one it was judged by.
    #[error("the membership shown is version {found}; the view names version {expected}")]
    Membership {
        /// The version that the view names.
        expected: u64,
        /// The version in the view.
        found: u64,
    },
    /// The server knows this device, but this machine has no state of it.
    #[error("this device has signed {number} operations on this file system, but its state is not here")]
    StateMissing {
        /// The number in its slot.
        number: u64,
    },
    /// This device's own signature proves that it made more operations than the state on this machine has.
    #[error("this device has signed operation {found}, but its state here ends at {known}")]
    StateBehind {
        /// Last number in the local state.
        known: u64,
        /// Number that its slot shows.
        found: u64,
    },
    /// The own slot is not the last committed structure.
    #[error("{}", own_slot(*.expected, *.found))]
    OwnSlot {
        /// Number that this device committed last.
        expected: Option<u64>,
        /// Number shown.
        found: Option<u64>,
    },
    /// A pending certificate of this device that it never sent.
    #[error("the server shows {0} as pending, which this device never sent")]
    NeverSent(Operation),
    /// A pending certificate does not continue its device's slot.
    #[error("{0} is shown as pending, but does not follow what its device committed last")]
    WrongPrevious(Operation),
    /// A pending certificate's number is out of sequence.
    #[error("{operation} is shown as pending out of sequence: {what}")]
    WrongNumber {
        /// The operation.
        operation: Operation,
        /// Why it is not allowed.
        what: String,
    },
    /// A forecast contradicts the certificate beside it.
    #[error("the forecast shown for {operation} contradicts its certificate: {what}")]
    WrongForecast {
        /// The operation.
        operation: Operation,
        /// Where they differ.
        what: String,
    },
    /// Two operations that do not know of each other: the history was forked.
    #[error("history was forked: {first} and {second} cannot both have happened, neither knows of the other")]
    Forked {
        /// The first operation.
        first: Operation,
        /// The second operation.
        second: Operation,
    },
    /// The view leaves out something that this device has already accepted.
    #[error("history was rolled back: {operation} does not follow the view this device accepted before")]
    BehindFloor {
        /// The first operation that is left out.
        operation: Operation,
    },
    /// The log does not grow along the order.
    #[error("{second} is shown after {first}, but not at a later place in the log of updates")]
    LogOrder {
        /// The first operation.
        first: Operation,
        /// The second operation.
        second: Operation,
    },
    /// The log shown does not extend the one accepted.
    #[error("the log of updates with {} entries does not extend the one with {} entries accepted before", .found.size, .known.size)]
    LogNotExtended {
        /// The log that was accepted before.
        known: LogHead,
        /// The log in the view.
        found: LogHead,
    },
    /// An operation knows of an operation of this device that is not yet ordered, or that was given up.
    #[error("{operation} knows of operation {found} of this device, whose last one is {last}")]
    OwnNumber {
        /// The operation that knows.
        operation: Operation,
        /// The number that the operation knows.
        found: u64,
        /// The last committed number.
        last: u64,
    },
    /// An operation knows of a fast one that the server had refused.
    #[error("the server refused operation {number} of this device, but {operation} knows of it")]
    NeverOffered {
        /// The operation that knows.
        operation: Operation,
        /// The refused number.
        number: u64,
    },
    /// An operation was committed with other contents than were announced to another device.
    #[error(
        "{recorded} was announced to {operation} otherwise than it came: two devices were shown different histories"
    )]
    PendingMismatch {
        /// The operation that recorded it.
        operation: Operation,
        /// The operation as it was recorded.
        recorded: Operation,
    },
    /// A pending operation was dropped.
    #[error("{operation} knows of {recorded} as pending, but the server no longer shows it")]
    PendingMissing {
        /// The operation that recorded it.
        operation: Operation,
        /// The operation as it was recorded.
        recorded: Operation,
    },
    /// An operation was declared dead to one device and committed to another.
    #[error("{operation} was told that {recorded} had been aborted, but it is committed")]
    AbortedButCommitted {
        /// The operation that recorded the abort.
        operation: Operation,
        /// The aborted operation.
        recorded: Operation,
    },
    /// An operation was declared dead to one device and is shown alive.
    #[error("{operation} was told that {recorded} had been aborted, but it is not shown as dead")]
    AbortedNotDead {
        /// The operation that recorded the abort.
        operation: Operation,
        /// The aborted operation.
        recorded: Operation,
    },
    /// An acknowledged operation of this device was aborted.
    #[error(
        "an acknowledged write was lost: {operation} was told that operation {number} of this device had been aborted"
    )]
    AcknowledgedLost {
        /// The operation that recorded the abort.
        operation: Operation,
        /// The lost number.
        number: u64,
    },
    /// An operation saw another as committed that is pending or dead in the view.
    #[error("{operation} knows of {hidden} as committed, but it is shown as pending or dead")]
    Unrecorded {
        /// The operation that knows.
        operation: Operation,
        /// The operation that it knows.
        hidden: Operation,
    },
    /// An operation saw another as committed that its author has given up.
    #[error("{operation} knows of {void} as committed, but its author has given it up")]
    VoidReflected {
        /// The operation that knows.
        operation: Operation,
        /// The void operation.
        void: Operation,
    },
    /// An operation knows of another that the view does not contain.
    #[error("{operation} knows of {hidden}, which the server does not show")]
    Hidden {
        /// The operation that knows.
        operation: Operation,
        /// The operation that it knows.
        hidden: Operation,
    },
    /// A device's slot was rolled back.
    #[error("device {} was at operation {known}; the server now shows it at {found}", .device.0)]
    SlotWentBack {
        /// The device.
        device: DeviceId,
        /// The number that was accepted before.
        known: u64,
        /// The number in the view; 0: the view has none.
        found: u64,
    },
    /// A device's slot holds another structure of the same number, signed with its key like the first.
    #[error("{0} is not the one that was shown before, and both are signed with its device's key")]
    SlotReplaced(Operation),
    /// A number that was committed is now given up, or was given up and no longer is.
    #[error("device {} says of its operation {number} otherwise than before: {what}", .device.0)]
    FateChanged {
        /// The device.
        device: DeviceId,
        /// Number of the operation.
        number: u64,
        /// How it changed.
        what: String,
    },
    /// A structure holds a table that its device may not write.
    #[error("{operation} holds a table of {principal}, which its device may not write")]
    Unauthorised {
        /// The operation.
        operation: Operation,
        /// The owner of the table.
        principal: PrincipalId,
    },
    /// A table is missing from a structure that must hold it, or of a wrong version, or replaced silently.
    #[error("{operation} holds a wrong table of {principal}: {what}")]
    WrongHandle {
        /// The operation.
        operation: Operation,
        /// The owner of the table.
        principal: PrincipalId,
        /// The fault of the table, in words.
        what: String,
    },
    /// The table in force was rolled back.
    #[error("the table of {principal} was at version {known}; the server now shows version {found}")]
    TableWentBack {
        /// The owner of the table.
        principal: PrincipalId,
        /// The version that was accepted before.
        known: u64,
        /// The version in the view; 0: the view has none.
        found: u64,
    },
    /// A receipt that is not for this operation, or not signed by a listed server.
    #[error("the server's receipt for operation {number} of this device is not valid")]
    BadReceipt {
        /// Number of the operation.
        number: u64,
    },
    /// A structure that is not the one that was announced.
    #[error("the server answered with another structure than {0}, which was waited for")]
    WrongStructure(Operation),
    /// This device's own slot has an operation that its key signed but this machine did not make.
    #[error(
        "operation {number} of this device is signed with its key, but was not made on this machine: the key and its \
         state were copied, and both copies are in use"
    )]
    Cloned {
        /// Its number.
        number: u64,
    },
    /// A change of the membership that the superuser has not made.
    #[error("{operation} changes the membership, and not by the superuser's leave: {what}")]
    Unwarranted {
        /// The operation that holds it.
        operation: Operation,
        /// Why it is not accepted.
        what: String,
    },
    /// The superuser has declared that the server was put back to an older state.
    #[error(
        "the server of this file system was put back to an older state, as its superuser declares: it goes on from its \
         first {size} operations"
    )]
    Restored {
        /// Number of operations that the restore left in the log.
        size: u64,
    },
    /// A view of an epoch that has ended.
    #[error(
        "the server shows the file system without a restore that this device has taken up, as its superuser declared it"
    )]
    EpochWentBack,
}

fn by(device: &Option<DeviceId>) -> String {
    device.map(|DeviceId(id)| format!(" (device {id})")).unwrap_or_default()
}

fn own_slot(expected: Option<u64>, found: Option<u64>) -> String {
    let shown = match found {
        None => "does not show any of its operations".to_owned(),
        found if found == expected => "shows another in its place".to_owned(),
        Some(number) => format!("shows number {number} as its last"),
    };
    match expected {
        Some(number) => {
            format!("this device's last committed operation is number {number}, but the server {shown}")
        }
        None => format!("this device has committed nothing yet, but the server {shown}"),
    }
}

impl Alarm {
    /// Who is to blame.
    pub fn blame(&self) -> Blame {
        match self {
            Alarm::StateMissing { .. } | Alarm::StateBehind { .. } | Alarm::Cloned { .. } => {
                Blame::LocalState
            }
            Alarm::RemovedDevice { operation, .. }
            | Alarm::Unauthorised { operation, .. }
            | Alarm::Unwarranted { operation, .. }
            | Alarm::WrongHandle { operation, .. } => Blame::Device(operation.device),
            Alarm::FateChanged { device, .. } => Blame::Device(*device),
            Alarm::Restored { .. } => Blame::Nobody,
            // Both are signed with its key: it was used twice. A server alone cannot do that.
            Alarm::SlotReplaced(operation) => Blame::Device(operation.device),
            _ => Blame::Server,
        }
    }

    /// An explanation for people: what happened, what it means and what to do.
    pub fn explain(&self) -> String {
        let meaning = match self.blame() {
            _ if matches!(self, Alarm::Cloned { .. }) => {
                "This is a clone, not a lie of the server's: no server can forge that signature. A machine that was \
                 copied with its state (an image, a snapshot, a restored backup that went on beside the original) has \
                 used this key. Find it. Carry a state with `holdfast fs state export` and `import`, which leave one \
                 in use; now make a new key on each machine (`holdfast keygen`), have the superuser enrol them \
                 (`holdfast fs device add`) and remove this device."
            }
            _ if matches!(self, Alarm::SlotReplaced(_)) => {
                "Two different operations are signed with that device's key under one number: the key is in use twice \
                 (its machine was cloned, or its state put back), or was stolen, and the server showed both. Ask its \
                 owner, keep the evidence file, and have the superuser remove the device."
            }
            Blame::Server => {
                "No honest server shows this. The server, or someone who controls it, has shown different \
                 people different histories, or tried to. Nothing it shows can be trusted until you have \
                 compared notes with the others; keep the evidence file, and save unsaved work with \
                 `holdfast salvage`."
            }
            Blame::Device(_) => {
                "The device named signed something it may not, or the server holds its key. Ask its owner, \
                 and have the superuser remove the device."
            }
            Blame::Nobody => {
                "This is no attack. The restore is taken up when the server is there; what of this device's is lost is \
                 listed, kept and sent again, and then what was not sent yet."
            }
            Blame::LocalState => {
                "This is no attack by itself: the local state of this key was deleted, restored from an older \
                 copy, or the key is used on two machines. A key's state must stay with it. Enrol this machine \
                 as a new device with `holdfast fs device add`."
            }
        };
        format!("{self}. {meaning}")
    }
}
