"""The colours (Okabe and Ito's) and line widths of roles, the same in every renderer."""

from detlab_widgets.spec import Role

COLOURS = {Role.ENDED: "#b0b0b0", Role.RUNNING: "#56b4e9", Role.BEST: "#d55e00"}
WIDTHS = {Role.ENDED: 1.0, Role.RUNNING: 1.5, Role.BEST: 3.0}  # pixels
