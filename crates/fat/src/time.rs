//! Times as FAT stores them: local time, in steps of two seconds (ten milliseconds for the creation), from
//! 1980 to 2107. There is no clock here: every operation gets the time, and the file system gets the
//! difference of local time from UTC.

use jiff::SignedDuration;
use jiff::civil::Date;

/// A moment in Unix time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Moment {
    /// Seconds since 1970-01-01 00:00 UTC.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Date and time as stored, with the hundredths of the two seconds (0 to 199).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Stored {
    pub(crate) date: u16,
    pub(crate) time: u16,
    pub(crate) hundredths: u8,
}

const DAY: i64 = 86_400;
/// 1980-01-01, in days since 1970-01-01.
const FIRST_DAY: i64 = 3652;
/// The last day that FAT can store, 2107-12-31, in days since 1970.
const LAST_DAY: i64 = 50_402;

/// 1970-01-01.
const EPOCH: Date = jiff::civil::date(1970, 1, 1);

/// Days since 1970-01-01 of a date.
fn days(date: Date) -> i64 {
    date.duration_since(EPOCH).as_hours() / 24
}

impl Stored {
    /// A moment in the stored form. One outside of the years that FAT knows becomes the nearest that it knows.
    pub(crate) fn from_moment(moment: Moment, utc_offset_minutes: i16) -> Stored {
        let local = moment.seconds.saturating_add(i64::from(utc_offset_minutes) * 60);
        let day = local.div_euclid(DAY);
        if day < FIRST_DAY {
            return Stored { date: 1 << 5 | 1, time: 0, hundredths: 0 };
        }
        if day > LAST_DAY {
            return Stored { date: 127 << 9 | 12 << 5 | 31, time: 23 << 11 | 59 << 5 | 29, hundredths: 199 };
        }
        let date = EPOCH + SignedDuration::from_hours(day * 24);
        let (year, month, day) = (i64::from(date.year()), i64::from(date.month()), i64::from(date.day()));
        let second = local.rem_euclid(DAY);
        let hundredths = (second % 2) as u32 * 100 + moment.nanoseconds.min(999_999_999) / 10_000_000;
        Stored {
            date: ((year - 1980) << 9 | month << 5 | day) as u16,
            time: ((second / 3600) << 11 | (second / 60 % 60) << 5 | (second % 60 / 2)) as u16,
            hundredths: hundredths as u8,
        }
    }

    /// The stored moment. An invalid date or time becomes the nearest valid one.
    pub(crate) fn to_moment(self, utc_offset_minutes: i16) -> Moment {
        let year = 1980 + (self.date >> 9) as i16;
        let month = ((self.date >> 5 & 15) as i8).clamp(1, 12);
        let first = jiff::civil::date(year, month, 1);
        let of_month = ((self.date & 31) as i8).clamp(1, first.days_in_month());
        let day = days(first) + i64::from(of_month) - 1;
        let hour = i64::from(self.time >> 11).min(23);
        let minute = i64::from(self.time >> 5 & 63).min(59);
        let second = i64::from(self.time & 31).min(29) * 2;
        let hundredths = u32::from(self.hundredths.min(199));
        Moment {
            seconds: day * DAY + hour * 3600 + minute * 60 + second + i64::from(hundredths / 100)
                - i64::from(utc_offset_minutes) * 60,
            nanoseconds: hundredths % 100 * 10_000_000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Golden vectors, from `mdir` and the kernel.
    #[test]
    fn known_dates() {
        let stored = |seconds| Stored::from_moment(Moment { seconds, nanoseconds: 0 }, 0);
        assert_eq!(stored(315_532_800), Stored { date: 0x0021, time: 0, hundredths: 0 });
        // 2026-11-22 14:28:03 UTC: the odd second is in the hundredths.
        let date = (46 << 9) | (11 << 5) | 22;
        assert_eq!(stored(1_795_357_683), Stored { date, time: 14 << 11 | 28 << 5 | 1, hundredths: 100 });
        // A leap day, and the ends.
        assert_eq!(stored(1_709_164_800).date, 44 << 9 | 2 << 5 | 29);
        assert_eq!(stored(0).date, 0x0021);
        assert_eq!(stored(i64::MAX).date, 127 << 9 | 12 << 5 | 31);
        assert_eq!(stored(i64::MIN).date, 0x0021);
        assert_eq!(days(jiff::civil::date(2107, 12, 31)), LAST_DAY);
        assert_eq!(days(jiff::civil::date(1980, 1, 1)), FIRST_DAY);
    }

    proptest! {
        /// Proves that times that FAT can store are restored, in any zone, and that any stored bits can be
        /// read.
        #[test]
        fn what_can_be_kept_comes_back(seconds in 315_619_200i64..4_354_732_800, hundredths in 0u32..100, offset in -840i16..=840) {
            let moment = Moment { seconds, nanoseconds: hundredths * 10_000_000 };
            prop_assert_eq!(Stored::from_moment(moment, offset).to_moment(offset), moment);
        }

        #[test]
        fn any_bits_are_a_moment_that_fat_can_keep(date: u16, time: u16, hundredths: u8) {
            let moment = Stored { date, time, hundredths }.to_moment(0);
            prop_assert_eq!(Stored::from_moment(moment, 0).to_moment(0), moment);
        }
    }
}
