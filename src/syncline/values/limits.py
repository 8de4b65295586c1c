"""Every bound of the storage engine, with its unit.

A limit here is a ceiling that no configuration may pass; defaults that an operator may change
within them stand beside them.
"""

KIB = 1024
MIB = 1024 * KIB

# Payload of one entry. The record format has 24 bits for it; snapshots may be larger than messages.
entry_bytes_max = 4 * MIB
snapshot_bytes_max = 15 * MIB

# A sequence has 40 bits and the unread count 24 in a record: 34 years at a thousand entries a
# second.
sequence_max = (1 << 40) - 1
unread_count_max = (1 << 24) - 1

# A time in milliseconds since 1970 shares eight bytes with a quota in the log.
time_ms_max = (1 << 48) - 1

queue_quota_default = 128
queue_quota_max = 65_535

cursor_name_bytes_max = 64
cursors_per_stream_max = 65_536

# One write and one sync; nothing is gained far above 1 MiB a batch. What 64 writers of 16 KiB have
# in flight, and their headers, fits into one.
batch_bytes_max = 4 * MIB
batch_bytes_default = 2 * MIB
# Bytes staged or being written; above it producers wait.
waiting_bytes_max = 32 * MIB
# Batches kept in memory once they are written, for readers that keep up.
recent_bytes_max = 16 * MIB
# Acknowledgements kept back to fill the padding of later batches: what a crash may deliver again.
deferred_ack_count_max = 4_096
# Events that wait for a batch, 64 bytes each. From the first number on they get one of their own;
# beyond the second they are left out, and that is noted.
event_batch_count = 4_096
waiting_event_count_max = 65_536

segment_bytes_min = 64 * KIB
segment_bytes_default = 64 * MIB
segment_bytes_max = 1024 * MIB
# Bounds the index in memory and the replay, however small the entries are.
segment_record_count_max = 131_072
live_segment_count_max = 6

run_count_max = 64
read_count_max = 1_024
read_bytes_max = 16 * MIB

# ------------------------------------------------------------------------------- documents

document_name_bytes_max = 200
client_id_characters_max = 64
token_bytes_max = 8 * KIB
# What a client may send in one frame. A whole state goes the other way and may be larger.
frame_bytes_max = 1 * MIB
state_frame_bytes_max = 32 * MIB
presence_bytes_max = 4 * KIB
json_depth_max = 64
# A client's own counter, and the number of a subscription: what every JSON library reads exactly.
clock_max = (1 << 53) - 1
epoch_max = (1 << 53) - 1
# Yjs: who is present in a document, and what one update may claim to hold.
awareness_client_count_max = 1_024
awareness_state_bytes_max = 16 * KIB
awareness_bytes_max = 1 * MIB
state_vector_client_count_max = 65_536
update_client_count_max = 65_536
# The libraries keep clocks in 32 bits.
update_clock_max = (1 << 31) - 1
# Shared types in one another that one update may bring. Editors nest a few dozen; to delete the
# outermost takes some 250 bytes of stack for each.
update_depth_max = 1_000
# Those of a whole document: in the worst case each lies in the next.
document_type_count_max = 100_000
# Action Cable: what names a subscription, and comes back with each of its messages.
cable_identifier_characters_max = 2_048

# ---------------------------------------------------------------------------------- queues

# Of a service whose session reads slowly: queues that are remembered to have something for it.
# Beyond that all its queues are gone through once more.
service_due_count_max = 4_096
# Queues that are looked at in one turn once it can take more.
due_page_count = 256
# Queues that one session fetched from without subscribing; the oldest are forgotten.
fetched_queue_count_max = 4_096
# Notifications that wait for a subscriber, in memory; the oldest are dropped.
notifications_per_notifier_max = 32
notification_count_max = 65_536
notification_ms_max = 24 * 60 * 60 * 1_000
