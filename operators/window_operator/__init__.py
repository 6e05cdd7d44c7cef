"""The window operator by itself, called by hand or in a loop: messages in, panes out, each message once."""

from tidestate.operators.window_operator.by_hand import Result as Result
from tidestate.operators.window_operator.joining import JoinOperator as JoinOperator
from tidestate.operators.window_operator.operator import WindowOperator as WindowOperator
from tidestate.operators.window_operator.running import run_operator as run_operator
