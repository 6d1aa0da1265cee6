"""What can go wrong for a user. Each message says what was found, what was expected and what to do."""


class E3BMError(Exception):
    """The family of errors that a user can mend; everything else is a defect of ours."""


class SettingsError(E3BMError):
    """A setting or a name that does not exist or contradicts another."""


class DataError(E3BMError):
    """Images, features, labels or files that cannot be used as they are."""


class CheckpointError(E3BMError):
    """A run folder or model file that is damaged or belongs to other settings."""


class DivergenceError(E3BMError):
    """Numbers that stopped being finite."""


class PeerError(E3BMError):
    """Another process of the same run that is gone or does not answer."""
