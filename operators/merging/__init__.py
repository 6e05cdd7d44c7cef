"""Several streams as one: merged into one state, passed on as they come, or paired up by session."""

from operators.merging.accumulation import merge_accumulate as merge_accumulate
from operators.merging.description import Merged as Merged
from operators.merging.description import SessionJoined as SessionJoined
from operators.merging.description import Unioned as Unioned
from operators.merging.description import merge as merge
from operators.merging.description import session_join as session_join
from operators.merging.description import union as union
